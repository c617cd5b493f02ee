"""Which tool walls code off on this machine, and the command line for it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

_ENTER = Path(__file__).with_name("enter.py")
_PACKAGES = Path(__file__).parents[3]
"""The folder that holds the package headrace."""
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives")


def python_files() -> tuple[str, ...]:
    """What has to be seen to run Python with its libraries: neither data sets, nor home folders, nor the run."""
    own = {sys.prefix, sys.base_prefix, str(_PACKAGES / "headrace")}
    return (*_SYSTEM, *sorted(path for path in own if not path.startswith("/usr/")))


@dataclass(frozen=True, slots=True)
class Walls:
    tool: str
    """`bubblewrap`, `namespaces` or `none`."""
    disk_bytes: int
    network: bool
    reads: tuple[str, ...] | None
    """Paths that stay visible, read-only; None for all."""

    @property
    def stand(self) -> bool:
        return self.tool != "none"

    def around(self, command: list[str], folder: str, *, stays: bool = False) -> list[str]:
        """The command line that runs `command` (an absolute path first) in a sandbox whose one writable folder is
        `folder`: it begins there, or with `stays` where it is called. With the tool `none`, `command` itself."""
        match self.tool:
            case "none":
                return command
            case "namespaces":
                spec = {
                    "folder": folder,
                    "disk_bytes": self.disk_bytes,
                    "network": self.network,
                    "reads": self.reads,
                    "stays": stays,
                }
                return [sys.executable, "-I", "-S", str(_ENTER), json.dumps(spec), *command]
            case _:
                return [*self._bubblewrap(folder, os.getcwd() if stays else folder), "--", *command]

    def _bubblewrap(self, folder: str, begins: str) -> list[str]:
        program = shutil.which("bwrap")
        if program is None:
            raise FileNotFoundError("no program bwrap")
        line = [program, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--new-session"]
        line += [] if self.network else ["--unshare-net"]
        if os.geteuid() == 0:  # what it takes to become nobody, and for nobody to read
            kept = ("CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH")
            line += ["--cap-drop", "ALL", *(word for name in kept for word in ("--cap-add", name))]
        else:
            line += ["--unshare-user"]
        if self.reads is None:
            line += ["--ro-bind", "/", "/"]
        for path in self.reads or ():
            for parent in reversed(Path(path).parents[:-1]):
                line += ["--perms", "0755", "--dir", str(parent)]
            if os.path.islink(path):
                line += ["--symlink", os.readlink(path), path]
            elif os.path.exists(path):
                line += ["--ro-bind", path, path]
        line += ["--dev", "/dev", "--remount-ro", "/dev", "--proc", "/proc"]
        return [*line, "--perms", "1777", "--size", str(self.disk_bytes), "--tmpfs", folder, "--chdir", begins]
