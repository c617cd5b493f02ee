"""How this program was called, for commands that it prints to be copied."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def program() -> list[str]:
    """`headrace` where the shell finds it; else as it was called, as `.venv/bin/headrace`; else by module."""
    if shutil.which("headrace") is not None:
        return ["headrace"]
    if Path(sys.argv[0]).name == "headrace":
        return [sys.argv[0]]
    return [sys.executable, "-m", "headrace.cli.main"]
