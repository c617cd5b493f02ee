"""How modules of this room are run as programs. Imports little: see `guardian`."""

from __future__ import annotations

import os
import sys

PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""The folder that holds the package headrace."""
_START = "import sys; sys.path.insert(0, {0!r}); from headrace.sandbox import {1}; del sys.path[0]; {1}.main()"


def module_command(module: str, *arguments: str, libraries: bool = True) -> list[str]:
    """Runs `main` of a module of this room, with the arguments, in an interpreter that takes nothing from outside;
    without `libraries` it has the standard one alone, and starts in two thirds of the time."""
    return [sys.executable, "-I", *([] if libraries else ["-S"]), "-c", _START.format(PACKAGES, module), *arguments]
