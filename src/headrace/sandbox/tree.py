"""What the processes that come from this one use, as the kernel tells in /proc (proc(5)). Imports the standard
library alone. A process that ends meanwhile has nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.sandbox import linux
from headrace.sandbox.proc import read, stat_of, tasks_of

_OWN = ("RssAnon", "RssShmem", "VmSwap", "HugetlbPages", "VmPTE")
"""With the page tables, which may be far larger than what they map."""
_SHARED_OUT = ("Pss_Anon", "Pss_Shmem", "SwapPss", "Private_Hugetlb", "Shared_Hugetlb")
_KIB = 1024
_LONGEST_MESSAGE = 72 * _KIB
"""Of the kind that a buffer takes while it is not yet full, with what belongs to it."""
_TICKS = os.sysconf("SC_CLK_TCK")
_STATE, _USER_TIME = 0, 11
"""Places in a line of `stat`, behind the name; four times follow each other: own and that of children waited for."""


@dataclass(frozen=True, slots=True)
class Thread:
    runs: bool
    """It computes, or waits for a processor and for nothing else."""
    computed_ns: int
    waited_ns: int
    """For a processor; as of the last time that it got one."""


def memory_of(tree: Mapping[int, int]) -> tuple[int, int]:
    """(bytes, how many of the processes were gone) of the memory in use, in swap too, but for files on a disk.

    Memory that several processes share counts once for each, so the sum may be too large: see `exact_memory_of`.
    """
    used = gone = 0
    for pid in tree:
        fields = _fields(f"/proc/{pid}/status", _OWN)
        gone += fields is None
        used += sum((fields or {}).values())
    return used, gone


def exact_memory_of(tree: Mapping[int, int]) -> int:
    """As `memory_of`, with what processes share counted once; where the kernel does not tell, as there."""
    used = 0
    for pid, parent in tree.items():
        with contextlib.suppress(OSError):
            if parent in tree and linux.share_memory(pid, parent):
                continue
        own = _fields(f"/proc/{pid}/status", _OWN) or {}
        shared_out = _fields(f"/proc/{pid}/smaps_rollup", _SHARED_OUT)
        used += sum(shared_out.values()) + own.get("VmPTE", 0) if shared_out else sum(own.values())
    return used


def living_of(tree: Iterable[int]) -> set[int]:
    """Those of the processes that have memory: one that has ended has none, also before its parent has taken note."""
    return {pid for pid in tree if _fields(f"/proc/{pid}/status", _OWN[:1])}


def socket_bytes_of(pid: int) -> int:
    """The most that all sockets may hold of the network that the process sees; 0 where the kernel does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        count = int(read(f"/proc/{pid}/net/sockstat").split()[2])
        return count * (int(read("/proc/sys/net/core/wmem_default")) + _LONGEST_MESSAGE)
    return 0


def threads_of(pids: Iterable[int]) -> dict[int, Thread]:
    """Each thread of the processes, by its number; none where the kernel does not count."""
    found = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for task in tasks_of(pid):
                with contextlib.suppress(OSError, ValueError):
                    computed, waited, _ = map(int, read(f"/proc/{pid}/task/{task}/schedstat").split())
                    runs = stat_of(f"/proc/{pid}/task/{task}/stat")[_STATE] == b"R"
                    found[int(task)] = Thread(runs, computed, waited)
    return found


def computed_s_by(pids: Iterable[int]) -> float:
    """Processor time of the processes and of their children that ended."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError):
            ticks += sum(map(int, stat_of(f"/proc/{pid}/stat")[_USER_TIME : _USER_TIME + 4]))
    return ticks / _TICKS


def _fields(path: str, names: tuple[str, ...]) -> dict[str, int] | None:
    """Bytes of each of `names` that the file has; None if there is no such file, or it may not be read."""
    try:
        text = read(path).decode(errors="replace")
    except OSError:
        return None
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name in names and value.endswith(" kB"):
            found[name] = int(value[:-3]) * _KIB
    return found
