"""Which system calls are refused in the sandbox, as a program for the kernel's filter (seccomp(2)).

Refused is what would give memory that belongs to no process, so that no sum over processes has it; what would make
namespaces or mounts, through which walls can be got around; and what reaches into other processes, which may have fewer
calls refused. Imports the standard library alone.
"""

from __future__ import annotations

import errno
import platform
import struct
import sys

_CALLS = {
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "vmsplice": (278, 75), "io_uring_setup": (425, 425), "bpf": (321, 280),
    "perf_event_open": (298, 241), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "move_mount": (429, 429), "open_tree": (428, 428), "mount_setattr": (442, 442), "open_tree_attr": (467, 467),
    "open_by_handle_at": (304, 265), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
}  # fmt: skip
"""Numbers for each of `_MACHINES`."""
_SCHEDULING = {
    "setpriority": (141, 140), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118),
    "sched_setattr": (314, 274), "sched_setaffinity": (203, 122),
}  # fmt: skip
_YIELD, _CLONE, _CLONE3, _MMAP = (24, 124), (56, 220), (435, 435), (9, 222)
_SOCKET, _SOCKET_PAIR, _SET_SOCKET = (41, 198), (53, 199), (54, 208)
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""The kernel's name of each (linux/audit.h), and its column above."""

_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET (linux/sched.h)."""
_MAP_SHARED, _MAP_ANONYMOUS = 0x01, 0x20
"""The first is a bit of MAP_SHARED_VALIDATE too, and not of MAP_PRIVATE."""
_UNIX, _SOCKET_LEVEL, _SEND_BUFFER = 1, 1, 7
"""AF_UNIX, SOL_SOCKET, SO_SNDBUF."""
_DATAGRAMS = 2
"""A bit of SOCK_DGRAM, and of SOCK_RAW, which is the same for AF_UNIX; of no other type, nor of the flags there."""
_OTHER_ABI = 0x40000000
"""From here on, numbers of x86_64's 32-bit calls."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _MACHINE_AT, _ARGUMENTS_AT = 0, 4, 16
"""Where the kernel puts them (struct seccomp_data); of an argument of 8 bytes the lower half comes first."""
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000


def refusals(*, is_program: bool) -> bytes | None:
    """The filter. That for a program of the model refuses more: to change how it is scheduled, where yielding does
    nothing, and sockets of a network. None for machines whose calls are not known here."""
    if (column := _column()) is None:
        return None
    refuse, absent, nothing, allow = _fails(errno.EPERM), _fails(errno.ENOSYS), _fails(0), _step(_RETURN, _ALLOW)
    program = _known_calls()
    for numbers in (*_CALLS.values(), *(_SCHEDULING.values() if is_program else ())):
        program += _on(numbers[column], refuse)
    # Its flags are in memory, where a filter cannot look; C libraries go on with clone.
    program += _on(_CLONE3[column], absent)
    program += _on(_CLONE[column], _argument(0), _step(_ANY_BIT, _NEW_NAMESPACES, 0, 1), refuse, allow)
    # What is unmapped of such memory stays until all of it is, and no process shows it.
    shared = _step(_ANY_BIT, _MAP_ANONYMOUS, 0, 2), _step(_ANY_BIT, _MAP_SHARED, 0, 1)
    program += _on(_MMAP[column], _argument(3), *shared, refuse, allow)
    # So that a socket holds no more than it is counted for; see `tree.socket_bytes_of`.
    longer = _argument(1), _step(_EQUAL, _SOCKET_LEVEL, 0, 3), _argument(2), _step(_EQUAL, _SEND_BUFFER, 0, 1)
    program += _on(_SET_SOCKET[column], *longer, nothing, allow)
    if is_program:
        program += _on(_YIELD[column], nothing)
        program += _on(_SOCKET[column], _argument(0), _step(_EQUAL, _UNIX, 1, 0), refuse, allow)
    return b"".join([*program, allow])


def no_unix_sockets() -> bytes | None:
    """Another filter: nobody is reached by a Unix socket, since there is none but in pairs; and none of these that
    could send elsewhere, as one for datagrams can. None for machines whose calls are not known here."""
    if (column := _column()) is None:
        return None
    refuse, allow = _fails(errno.EAFNOSUPPORT), _step(_RETURN, _ALLOW)
    program = _known_calls()
    program += _on(_SOCKET[column], _argument(0), _step(_EQUAL, _UNIX, 0, 1), refuse, allow)
    program += _on(_SOCKET_PAIR[column], _argument(1), _step(_ANY_BIT, _DATAGRAMS, 0, 1), refuse, allow)
    return b"".join([*program, allow])


def _column() -> int | None:
    """This machine's, of the numbers above."""
    known = _MACHINES.get(platform.machine())
    return None if known is None or sys.platform != "linux" or sys.maxsize < 2**32 else known[1]


def _known_calls() -> list[bytes]:
    """The first steps: the number is loaded, and calls of another kind of machine are absent."""
    machine, _ = _MACHINES[platform.machine()]
    absent = _fails(errno.ENOSYS)
    return [
        _step(_LOAD, _MACHINE_AT), _step(_EQUAL, machine, 1, 0), absent,
        _step(_LOAD, _NUMBER_AT), _step(_AT_LEAST, _OTHER_ABI, 0, 1), absent,
    ]  # fmt: skip


def _on(number: int, *steps: bytes) -> list[bytes]:
    """The steps for one call, of which the last has to be an end; for all others they are left out."""
    return [_step(_EQUAL, number, 0, len(steps)), *steps]


def _step(code: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    """struct sock_filter; jumps count the steps that are left out."""
    return struct.pack("HBBI", code, if_so, if_not, value)


def _argument(place: int) -> bytes:
    return _step(_LOAD, _ARGUMENTS_AT + 8 * place)


def _fails(number: int) -> bytes:
    """With 0 the call does nothing, and is said to have worked."""
    return _step(_RETURN, _ERROR | number)
