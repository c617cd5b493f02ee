"""Users that root's samples run as: each place has one of its own, so that neither signals nor limits reach across."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.sandbox import linux
from headrace.sandbox.limits import NOBODY

_LOWEST = 60_000


@contextmanager
def own_users(count: int) -> Iterator[list[int]]:
    """`count` ids that nobody else has, of users and groups alike; `NOBODY` for all unless root asks.

    They are mapped in this user namespace, are not in the databases of users and groups, and no other run on the
    machine holds them meanwhile. Where they are too few, `NOBODY` stands in for the rest.
    """
    users: list[int] = []
    with contextlib.ExitStack() as stack:
        if linux.IS_LINUX and os.geteuid() == 0:
            mapped = [_ranges(Path(f"/proc/self/{kind}_map").read_text()) for kind in ("uid", "gid")]
            for number in range(NOBODY - 1, _LOWEST, -1):
                if len(users) == count:
                    break
                if all(any(number in one for one in ranges) for ranges in mapped):
                    claim = _claim(number)
                    if claim is not None and _is_known(number):
                        claim.close()
                    elif claim is not None:
                        stack.enter_context(claim)
                        users.append(number)
        yield users + [NOBODY] * (count - len(users))


def _ranges(text: str) -> list[range]:
    """Of a map as in user_namespaces(7): first id inside, first id outside, count."""
    lines = [list(map(int, line.split())) for line in text.splitlines()]
    return [range(first, first + count) for first, _, count in lines]


def _is_known(number: int) -> bool:
    with contextlib.suppress(KeyError):
        return bool(pwd.getpwuid(number))
    with contextlib.suppress(KeyError):
        return bool(grp.getgrgid(number))
    return False


def _claim(number: int) -> socket.socket | None:
    """A name that one process at a time can have, and loses when it ends; None if it is taken."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0headrace-user-{number}")
    except OSError:
        claim.close()
        return None
    return claim
