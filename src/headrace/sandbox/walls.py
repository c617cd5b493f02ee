"""Which tool walls code off on this machine, and the command line for it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.sandbox import linux
from headrace.sandbox.commands import PACKAGES
from headrace.sandbox.places import DEVICES

_ENTER, _TIED = Path(__file__).with_name("enter.py"), Path(__file__).with_name("tied.py")
_DEVICES = ["--dev", DEVICES, "--ro-bind", "/dev/null", "/dev/zero"]
"""What is mapped of `zero` to be shared is memory that no process shows, so it cannot be opened."""
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives")


def python_files() -> tuple[str, ...]:
    """What has to be seen to run Python with its libraries: neither data sets, nor home folders, nor the run."""
    own = {sys.prefix, sys.base_prefix, os.path.join(PACKAGES, "headrace")}
    seen = {each for path in own for each in _along_links(path)}  # a link is shown as one
    return (*_SYSTEM, *sorted(path for path in seen if not path.startswith("/usr/")))


def _along_links(path: str) -> Iterator[str]:
    """The path, and where it leads, if it is a link."""
    yield path
    while os.path.islink(path):
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        yield path


@dataclass(frozen=True, slots=True)
class Walls:
    tool: str
    """`bubblewrap`, `nsjail`, `namespaces` or `none`."""
    disk_bytes: int
    network: bool
    reads: tuple[str, ...] | None
    """Paths that stay visible, read-only; None for all but `hides`."""
    hides: tuple[str, ...] = ()
    """Folders that are empty, but for the working folder and for `shows`; of devices, but for those that do nothing."""
    shows: tuple[str, ...] = ()
    """Paths in the folders that are hidden."""

    @property
    def stand(self) -> bool:
        return self.tool != "none"

    def around(
        self,
        command: list[str],
        folder: str,
        *,
        stays: bool = False,
        passes: Sequence[int] = (),
        loopback: bool = False,
    ) -> list[str]:
        """The command line that runs `command` (an absolute path first) in a sandbox whose one writable folder is
        `folder`: it begins there, or with `stays` where it is called. It is handed the descriptors `passes`, which must
        be inheritable. With `loopback` a network of its own has that, and `command` has to wait for orphans: it may be
        the first process. With the tool `none`, `command` itself."""
        match self.tool:
            case "none":
                return command
            case "namespaces":
                return self._enter(command, folder, stays=stays, is_first=False, loopback=loopback)
            case "nsjail":
                inner = self._enter(command, folder, stays=stays, is_first=True, loopback=False)
                return [*self._nsjail(passes, loopback=loopback), "--", *inner]
            case _:
                begins = os.getcwd() if stays else folder
                return [*self._bubblewrap(folder, begins, is_first=loopback), "--", *command]

    def _enter(self, command: list[str], folder: str, *, stays: bool, is_first: bool, loopback: bool) -> list[str]:
        spec = {
            "folder": folder,
            "disk_bytes": self.disk_bytes,
            "network": self.network,
            "reads": self.reads,
            "hides": self.hides,
            "shows": self.shows,
            "stays": stays,
            "is_first": is_first,
            "loopback": loopback and not self.network,
        }
        return [sys.executable, "-I", "-S", str(_ENTER), json.dumps(spec), *command]

    def _nsjail(self, passes: Sequence[int], *, loopback: bool) -> list[str]:
        """All namespaces but that of mounts, which `enter` makes: nsjail's own read-only root leaves what is mounted
        below it, and two folders in memory of its own, to be written by every sample."""
        program = shutil.which("nsjail")
        if program is None:
            raise FileNotFoundError("no program nsjail")
        line = [sys.executable, "-I", "-S", str(_TIED), program, "--mode", "o", "--quiet", "--cwd", os.getcwd()]
        line += ["--disable_clone_newns", "--disable_proc"]
        line += [] if loopback else ["--iface_no_lo"]
        line += ["--disable_clone_newnet"] if self.network else []
        # The environment is that which nsjail is given; limits are `Limits`, and time is kept outside.
        line += ["--keep_env", "--disable_rlimits", "--time_limit", "0", "--nice_level", "0"]
        kept = ["CAP_SYS_ADMIN"]  # until the mounts are done
        if os.geteuid() == 0:
            line += ["--disable_clone_newuser"]
            kept += linux.ROOT_KEEPS
        line += [word for name in kept for word in ("--cap", name)]
        return line + [word for descriptor in passes for word in ("--pass_fd", str(descriptor))]

    def _bubblewrap(self, folder: str, begins: str, *, is_first: bool) -> list[str]:
        """`is_first`: no process of the tool is within, which would be the user's, and have no filter: a program that
        writes into its memory acts by it."""
        program = shutil.which("bwrap")
        if program is None:
            raise FileNotFoundError("no program bwrap")
        line = [program, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--new-session"]
        line += ["--as-pid-1"] if is_first else []
        line += [] if self.network else ["--unshare-net"]
        if os.geteuid() == 0:
            line += ["--cap-drop", "ALL", *(word for name in linux.ROOT_KEEPS for word in ("--cap-add", name))]
        else:
            line += ["--unshare-user"]
        if self.reads is None:
            line += ["--ro-bind", "/", "/"]
            return [*line, *self._hiding(folder, begins), *self._folder(folder), "--chdir", begins]
        for path in self.reads:
            line += _folders_above(path)
            if os.path.islink(path):
                line += ["--symlink", os.readlink(path), path]
            elif os.path.exists(path):
                line += ["--ro-bind", path, path]
        line += [*_DEVICES, "--remount-ro", "/dev", "--proc", "/proc", "--remount-ro", "/proc"]
        return [*line, *self._folder(folder), "--remount-ro", "/", "--chdir", begins]

    def _hiding(self, folder: str, begins: str) -> list[str]:
        line = []
        for place in self.hides:
            line += _DEVICES if place == DEVICES else ["--perms", "0755", "--tmpfs", place]
        for path in self.shows:
            bind = "--dev-bind" if Path(path).is_relative_to(DEVICES) else "--ro-bind"
            line += [*_folders_above(path), bind, path, path]
        for path in (folder, begins):
            if any(Path(path).is_relative_to(place) for place in self.hides):
                line += [*_folders_above(path), "--perms", "0755", "--dir", path]
        for place in self.hides:
            line += ["--remount-ro", place]
        return [*line, "--proc", "/proc"]

    def _folder(self, folder: str) -> list[str]:
        return ["--perms", "1777", "--size", str(self.disk_bytes), "--tmpfs", folder]


def _folders_above(path: str) -> list[str]:
    return [word for one in reversed(Path(path).parents[:-1]) for word in ("--perms", "0755", "--dir", str(one))]
