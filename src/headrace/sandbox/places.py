"""What a function of the user sees of the folders where a machine keeps its sockets, pipes and passing files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence

DEVICES = "/dev"
"""Of it the few devices that do nothing are shown."""
HIDDEN = ("/run", "/var/run", "/tmp", DEVICES)
_NAMES = "/etc/resolv.conf"
"""Says who knows the addresses of names; often a link to below /run."""
NEEDS = "# It needs: "
"""Begins the second line of a file that was written for a function given in Python; paths follow, in JSON."""


def own_places(
    functions: Sequence[str], read: Sequence[str], *, network: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the folders that are hidden, what of them is shown) to `functions` (`path.py:name` or `module:name`).

    Shown is what it takes to load them: Python, its import path, and the folder of each. And what the user wants to
    `read`: of a place that is named there, or lies in one that is, nothing is hidden. All paths are absolute.
    """
    wanted = _both(read)
    places = [os.path.realpath(place) for place in HIDDEN if os.path.isdir(place)]
    hides = [place for place in dict.fromkeys(places) if not any(_holds(path, place) for path in wanted)]
    needed = [sys.prefix, sys.base_prefix, *_import_path(), *([_NAMES] if network else [])]
    needed += [home for function in functions for home in _homes_of(function)]
    shown = [path for path in (*wanted, *_both(needed)) if any(_holds(place, path) for place in hides)]
    shown = [path for path in dict.fromkeys(shown) if path not in hides]
    return tuple(hides), tuple(
        path for path in shown if not any(_holds(other, path) for other in shown if other != path)
    )


def _homes_of(function: str) -> list[str]:
    """The folder of a function's file, or the file alone where that folder is a hidden one; of a module the working
    folder, where it is looked for."""
    place = os.path.expanduser(function.rpartition(":")[0])
    if not place.endswith(".py"):
        return [os.getcwd()]
    hidden = [os.path.realpath(path) for path in HIDDEN]
    files = (os.path.abspath(place), os.path.realpath(place))
    folders = [os.path.dirname(file) for file in files]
    both = zip(files, folders, strict=True)
    homes = [file if os.path.realpath(folder) in hidden else folder for file, folder in both]
    return [*homes, *_needs_of(files[0])]


def _needs_of(file: str) -> list[str]:
    try:
        with open(file, encoding="utf-8") as lines:
            next(lines)
            line = next(lines)
        found = json.loads(line.removeprefix(NEEDS)) if line.startswith(NEEDS) else []
    except (OSError, ValueError, StopIteration):
        return []
    return [path for path in found if isinstance(path, str)] if isinstance(found, list) else []


def _import_path() -> list[str]:
    """But for the folder of the script, or the working folder, that Python puts first."""
    return [path for path in sys.path[0 if sys.flags.safe_path else 1 :] if path]


def _both(paths: Iterable[str]) -> list[str]:
    """Each path as it is named and as it really is, of those that exist."""
    named = [os.path.abspath(path) for path in paths if os.path.exists(path)]
    return [one for path in named for one in (path, os.path.realpath(path))]


def _holds(folder: str, path: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
