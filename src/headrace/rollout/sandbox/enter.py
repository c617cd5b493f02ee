"""Runs a command in namespaces of its own, where all files are read-only but those of one folder in memory.

Run as `python -I -S enter.py SPEC COMMAND...`; SPEC is JSON: `folder` (an empty one), its size `disk_bytes`,
`network`, `reads` (paths that stay visible; null for all), `stays`: the command begins in the present working
folder and not in `folder`, and `is_first`: this process is the first one of namespaces that were made for it, and only
the mounts are left to do. Exits as the command does (128 + N for signal N), or with 125 if there is no sandbox. Every
process in it ends with the command, and the command with this process. Imports the standard library alone.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from headrace.rollout.sandbox import linux
else:
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import linux  # a script: the package around it costs a start more than the rest

    del sys.path[0]

NO_SANDBOX = 125
_DEVICES = ("null", "full", "random", "urandom")
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
                Path(f"/proc/self/{name}").write_text(text)
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
        if spec["reads"] is None:
            _hide_nothing(spec)
        else:
            _hide_all_but(spec)
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


def _hide_nothing(spec: dict[str, Any]) -> None:
    here = os.getcwd()
    linux.make_read_only("/")
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    _mount_memory(spec["folder"], spec["disk_bytes"])
    os.chdir(here)


def _hide_all_but(spec: dict[str, Any]) -> None:
    root, folder = spec["folder"], spec["folder"]
    _mount_memory(root, 1 << 20)
    for path in spec["reads"]:
        target = root + path
        if not os.path.exists(path):
            continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.islink(path):  # as /lib, which often is usr/lib
            os.symlink(os.readlink(path), target)
            continue
        if os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
        else:
            Path(target).touch()
        linux.mount(path, target, None, linux.MS_BIND | linux.MS_REC)
    os.makedirs(f"{root}/dev")
    for name in _DEVICES:
        Path(f"{root}/dev/{name}").touch()
        linux.mount(f"/dev/{name}", f"{root}/dev/{name}", None, linux.MS_BIND)
    for place in (f"{root}/proc", root + folder):
        os.makedirs(place, exist_ok=True)
    linux.mount("proc", f"{root}/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    linux.move_root(root)
    linux.make_read_only("/")
    _mount_memory(folder, spec["disk_bytes"])


def _mount_memory(folder: str, size: int) -> None:
    options = f"mode=1777,size={size},nr_inodes={_MOST_FILES}"
    linux.mount("tmpfs", folder, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _fail(error: OSError) -> NoReturn:
    os.write(2, f"no sandbox: {error}\n".encode())
    os._exit(NO_SANDBOX)


if __name__ == "__main__":
    main()
