"""How versions lie in a folder: see `disk.py`. For those who read it without torch."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.weights.plane import WeightError
from headrace.weights.version import Version

POINTER = "LATEST"
CHECK = "check.json"


def name_of(version: Version) -> str:
    return f"{version.branch}-{version.number}"


def version_of(name: str) -> Version | None:
    match = re.fullmatch(r"([0-9]{1,18})-([0-9]{1,18})", name)
    return Version(int(match[1]), int(match[2])) if match else None


def pointed(folder: Path) -> Version | None:
    """The newest version; None before the first. Raises WeightError."""
    pointer = folder / POINTER
    try:
        text = pointer.read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise WeightError(f"{pointer} cannot be read: {error}; it is tried again") from error
    version = version_of(text.removesuffix("\n"))
    if version is None:
        raise WeightError(f"{pointer} is damaged: {text[:40]!r} names no version; remove it and publish again")
    return version
