"""The few calls to the Linux kernel that Python does not have. Each raises OSError."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
from collections.abc import Iterable
from functools import cache

NEW_MOUNTS = 0x00020000
NEW_NAMESPACES = NEW_MOUNTS | 0x20000000 | 0x08000000 | 0x04000000
"""Of mounts, processes, shared memory and host name (linux/sched.h)."""
NEW_USER, NEW_NET = 0x10000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
ROOT_KEEPS = {
    "CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_DAC_READ_SEARCH": 2, "CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7,
}  # fmt: skip
"""What it takes for root to become nobody, and for nobody to read (linux/capability.h)."""

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_SET_CHILD_SUBREAPER = 1, 4, 8, 36
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 38, 47, 2
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2
_CAPABILITY_HEADER = struct.pack("II", 0x20080522, 0)
"""Version 3, of this process."""
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_KCMP, _KCMP_VM = {"x86_64": 312, "aarch64": 272}, 1
_MOUNT_SETATTR = 442
_AT_RECURSIVE, _MOUNT_ATTR_RDONLY = 0x8000, 1
_MNT_DETACH = 2
_SET_INTERFACE_FLAGS, _INTERFACE_UP = 0x8914, 1

IS_LINUX = sys.platform == "linux"


def unshare(flags: int) -> None:
    _check(_libc().unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    _check(_libc().mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]), f"mount {target}")


def make_read_only(target: str) -> None:
    """`target` and all that is mounted below it (Linux 5.12)."""
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY, 0, 0, 0)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    code = _libc().syscall(
        ctypes.c_long(_MOUNT_SETATTR), -100, os.fsencode(target), _AT_RECURSIVE, ctypes.byref(attributes), size
    )
    _check(code, f"make {target} read-only")


def move_root(target: str) -> None:
    """`target`, a mount, becomes the root; what was seen before is gone."""
    number = _PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(f"pivot_root is not known for {os.uname().machine}")
    os.chdir(target)
    _check(_libc().syscall(ctypes.c_long(number), b".", b"."), "pivot_root")
    _check(_libc().umount2(b".", _MNT_DETACH), "umount the old root")
    os.chdir("/")


def raise_loopback() -> None:
    """127.0.0.1 of this process's network, which is its own (netdevice(7))."""
    import fcntl
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_INTERFACE_FLAGS, struct.pack("16sH14x", b"lo", _INTERFACE_UP))


def die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Processes whose parents end become children of this one, so that none is lost from sight."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_memory() -> None:
    """No other process of this user reads this one's memory, files or environment, nor traces it."""
    _prctl(_PR_SET_DUMPABLE, 0)


def show_memory() -> None:
    """Takes `hide_memory` back: whoever may trace this process sees what it uses."""
    _prctl(_PR_SET_DUMPABLE, 1)


def filter_calls(program: bytes) -> None:
    """System calls of this process and its children go through `program`, steps of 8 bytes (seccomp(2)), for good."""
    steps = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("HP", len(program) // 8, ctypes.addressof(steps)))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(header))


def share_memory(one: int, other: int) -> bool:
    """Whether two processes have one and the same address space, as between vfork and exec."""
    number = _KCMP.get(os.uname().machine)
    if number is None:
        raise OSError(f"kcmp is not known for {os.uname().machine}")
    code = _libc().syscall(ctypes.c_long(number), one, other, _KCMP_VM, ctypes.c_ulong(0), ctypes.c_ulong(0))
    _check(code, "kcmp")
    return bool(code == 0)


def gain_nothing() -> None:
    """No program that this process or its children start has more rights than they have."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def keep_rights_when_becoming() -> None:
    """What this process and its forks are permitted, when they become another user."""
    _prctl(_PR_SET_KEEPCAPS, 1)


def become(user: int, *, reads_all: bool, or_writes_all: bool = False) -> None:
    """From root to `user`, for good; with `reads_all` it and its children still read whatever root may read: then
    `keep_rights_when_becoming` was called before, by this process or the one that it is a fork of. Where root lacks
    CAP_DAC_READ_SEARCH, as in many containers, they read what everybody may, or with `or_writes_all` keep
    CAP_DAC_OVERRIDE instead, if root has it."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    if not reads_all:
        return
    for right in (_CAP_DAC_READ_SEARCH, *([_CAP_DAC_OVERRIDE] if or_writes_all else [])):
        try:
            keep_capabilities([right])
        except PermissionError:
            continue
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, right)
        return
    keep_capabilities(())


def keep_capabilities(numbers: Iterable[int]) -> None:
    """This process, which must have them, keeps these capabilities (below 32) and no other."""
    mask = sum(1 << number for number in numbers)  # effective, permitted and inheritable
    _check(_libc().capset(_CAPABILITY_HEADER, struct.pack("6I", mask, mask, mask, 0, 0, 0)), "capset")


def _prctl(option: int, one: int, two: int = 0) -> None:
    if _libc().prctl(option, one, two, 0, 0) < 0:
        _check(-1, f"prctl {option}")


@cache
def _libc() -> ctypes.CDLL:
    """Once for a process and its forks: to open it is dearer than any call."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    libc.capset.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
    return libc


def _check(code: int, what: str) -> None:
    if code < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
