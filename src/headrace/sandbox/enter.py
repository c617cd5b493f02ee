"""Runs a command in namespaces of its own, where all files are read-only but those of one folder in memory.

Run as `python -I -S enter.py SPEC COMMAND...`; SPEC is JSON: `folder` (an empty one), its size `disk_bytes`,
`network`, `reads` (paths that stay visible; null for all), `hides` (of all, folders that are emptied, but for the paths
`shows`), `stays`: the command begins in the present working folder and not in `folder`, and `is_first`: this process is
the first one of namespaces that were made for it, and only the mounts are left to do; with `loopback` its network has
that. Exits as the command does
(128 + N for signal N), or with 125 if there is no sandbox. Every process in it ends with the command, and the command
with this process. Imports the standard library alone.
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False  # as type checkers know it: `typing` takes longer than all else here
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from headrace.sandbox import linux
else:
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import linux  # a script: the package around it costs a start more than the rest

    del sys.path[0]

NO_SANDBOX = 125
_DEVICE_FOLDER, _DEVICES = "/dev", ("null", "full", "random", "urandom")
"""Those that do nothing. What is mapped of `zero` to be shared would be memory that no process shows."""
_MOST_FILES = 10_000


def main() -> None:
    spec, command = json.loads(sys.argv[1]), sys.argv[2:]
    if spec["is_first"]:
        _be_first(spec, command)
    try:
        linux.die_with_parent()
        user, group = os.geteuid(), os.getegid()
        linux.unshare(
            linux.NEW_NAMESPACES | (0 if spec["network"] else linux.NEW_NET) | (linux.NEW_USER if user else 0)
        )
        if user:
            for name, text in (
                ("setgroups", "deny"),
                ("uid_map", f"{user} {user} 1"),
                ("gid_map", f"{group} {group} 1"),
            ):
                _write(f"/proc/self/{name}", text)
    except OSError as error:
        _fail(error)
    first = os.fork()
    if first == 0:
        _be_first(spec, command)
    os._exit(_exit_code(os.waitpid(first, 0)[1]))


def _be_first(spec: dict[str, Any], command: list[str]) -> NoReturn:
    """The first process of the namespace: when it ends, the kernel ends all others."""
    try:
        linux.die_with_parent()
        if spec["is_first"]:
            linux.unshare(linux.NEW_MOUNTS)
        linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
        if spec["loopback"]:
            linux.raise_loopback()
        mask = os.umask(0o022)  # samples of root's are another user's, who goes through the folders made here
        if spec["reads"] is None:
            _hide_some(spec)
        else:
            _hide_all_but(spec)
        os.umask(mask)
    except OSError as error:
        _fail(error)
    second = os.fork()
    if second == 0:
        os.setsid()
        if not spec["stays"]:
            os.chdir(spec["folder"])
        try:
            if spec["is_first"]:  # it was left the right to mount
                linux.keep_capabilities(linux.ROOT_KEEPS.values() if os.geteuid() == 0 else ())
            os.execv(command[0], command)
        except OSError as error:
            _fail(error)
    while True:
        ended, status = os.wait()
        if ended == second:
            os._exit(_exit_code(status))


def _hide_some(spec: dict[str, Any]) -> None:
    here, folder = os.getcwd(), spec["folder"]
    devices = [f"{_DEVICE_FOLDER}/{name}" for name in _DEVICES] if _DEVICE_FOLDER in spec["hides"] else []
    kept = {path: os.open(path, os.O_PATH) for path in (*devices, *spec["shows"])}  # to be found once it is hidden
    for place in spec["hides"]:
        _mount_memory(place, 1 << 20, mode="755")
    for path, descriptor in kept.items():
        _show(f"/proc/self/fd/{descriptor}", path)
        os.close(descriptor)
    if devices:
        _link_streams(_DEVICE_FOLDER)
    for path in (folder, here):
        os.makedirs(path, exist_ok=True)
    linux.make_read_only("/")
    _mount_processes("/proc")
    _mount_memory(folder, spec["disk_bytes"])
    os.chdir(here)


def _hide_all_but(spec: dict[str, Any]) -> None:
    root, folder = spec["folder"], spec["folder"]
    _mount_memory(root, 1 << 20)
    for path in spec["reads"]:
        if os.path.islink(path):  # as /lib, which often is usr/lib
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            os.symlink(os.readlink(path), root + path)
        elif os.path.exists(path):
            _show(path, root + path)
    for name in _DEVICES:
        _show(f"{_DEVICE_FOLDER}/{name}", f"{root}{_DEVICE_FOLDER}/{name}")
    _link_streams(root + _DEVICE_FOLDER)
    for place in (f"{root}/proc", root + folder):
        os.makedirs(place, exist_ok=True)
    _mount_processes(f"{root}/proc")
    linux.move_root(root)
    linux.make_read_only("/")
    _mount_memory(folder, spec["disk_bytes"])


def _show(path: str, target: str) -> None:
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _write(target, "")
    linux.mount(path, target, None, linux.MS_BIND | linux.MS_REC)


def _link_streams(folder: str) -> None:
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{folder}/{name}")
    os.symlink("/proc/self/fd", f"{folder}/fd")


def _mount_processes(target: str) -> None:
    linux.mount("proc", target, "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)


def _mount_memory(folder: str, size: int, mode: str = "1777") -> None:
    options = f"mode={mode},size={size},nr_inodes={_MOST_FILES}"
    linux.mount("tmpfs", folder, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _fail(error: OSError) -> NoReturn:
    os.write(2, f"no sandbox: {error}\n".encode())
    os._exit(NO_SANDBOX)


if __name__ == "__main__":
    main()
