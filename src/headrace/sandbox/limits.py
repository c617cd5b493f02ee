"""What a process and its children may use."""

from __future__ import annotations

import contextlib
import os
import resource
from dataclasses import dataclass

from headrace.sandbox import linux
from headrace.sandbox.call_filter import no_unix_sockets, refusals

NOBODY = 65534
"""The user that samples run as where root has none of their own for them; see `users`."""


@dataclass(frozen=True, slots=True)
class Limits:
    memory_bytes: int
    """Address space of each process; and what all of them may have together, which `watch` sees to."""
    processes: int
    """Processes and threads, beside those that the user has."""
    open_files: int
    file_bytes: int
    """Of each file."""
    cpu_s: int
    """Of each process."""
    user: int = NOBODY
    """Whom root becomes: the kernel does not limit the number of root's processes."""

    def apply(self, *, reads_all: bool, is_filtered: bool) -> None:
        """To this process and its children, for good. Root becomes `user`; with `reads_all` it still reads as root.
        What is not yet filtered (see `filter_calls`) is, as a program of the model."""
        if linux.IS_LINUX:
            if not is_filtered:
                linux.gain_nothing()
                if reads_all:
                    linux.keep_rights_when_becoming()
            if os.geteuid() == 0:
                linux.become(self.user, reads_all=reads_all)
            if not is_filtered:
                filter_calls(is_program=True)
        limit_dumps()
        _limit(resource.RLIMIT_AS, self.memory_bytes)
        _limit(resource.RLIMIT_NOFILE, self.open_files)
        _limit(resource.RLIMIT_FSIZE, self.file_bytes)
        _limit(resource.RLIMIT_CPU, self.cpu_s)
        limit_processes(self.processes, alone=os.geteuid() == self.user != NOBODY)

    def hand_over(self, folder: str) -> None:
        """To whom root becomes."""
        if os.geteuid() == 0:
            os.chown(folder, self.user, self.user)


def filter_calls(*, is_program: bool) -> None:
    """Of this process and its children, for good, where the kernel does; to programs of the model `filter` allows
    less. They cannot gain rights either."""
    if linux.IS_LINUX:
        linux.gain_nothing()
        _filter(refusals(is_program=is_program))


def refuse_unix_sockets() -> None:
    """To this process and its children, for good, where the kernel does; pairs of them are left. `filter_calls` was
    called before."""
    if linux.IS_LINUX:
        _filter(no_unix_sockets())


def limit_processes(count: int, *, alone: bool) -> None:
    """Of this process' children, for good, beside those that its user has now. `alone`: a user of this place's own,
    who has no other process."""
    if linux.IS_LINUX:
        _limit(resource.RLIMIT_NPROC, count + (1 if alone else _threads_of(os.geteuid())))


def limit_dumps() -> None:
    """To none, of this process and its children."""
    _limit(resource.RLIMIT_CORE, 0)


def _filter(program: bytes | None) -> None:
    with contextlib.suppress(OSError):  # a kernel without filters
        if program is not None:
            linux.filter_calls(program)


def address_space() -> int:
    """Bytes that this process has mapped; 0 where that cannot be told."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def _limit(kind: int, value: int) -> None:
    try:
        _, most = resource.getrlimit(kind)
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(kind, (value, value))
    except (ValueError, OSError):  # some systems do not have every limit
        pass


def _threads_of(user: int) -> int:
    """How many threads `user` has already: the limit counts them too."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == user:
                    count += len(os.listdir(f"/proc/{name}/task"))
    return count
