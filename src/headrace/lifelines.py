"""Ends of pipes and sockets by whose closing another process knows that this one has ended, however it ends.

Forks of this process have none of them: a pool of processes that a user's function made would keep such an end open,
and whoever waits for its closing would wait for the pool.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet


class End(Protocol):
    def fileno(self) -> int:
        """Its descriptor; negative, or ValueError, once it is closed."""


_ENDS: WeakSet[End] = WeakSet()


def hold(end: End) -> None:
    """Have it closed in every fork of this process, until it is closed here, or nobody has it any more."""
    _ENDS.add(end)


def _give_up() -> None:
    """In a fork. Its descriptors stay taken, by nothing, so that what closes them there closes nobody else's."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for end in _ENDS:
        with suppress(OSError, ValueError):
            os.dup2(nothing, end.fileno(), inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=_give_up)
