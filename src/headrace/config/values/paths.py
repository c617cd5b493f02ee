"""Paths as people write them."""

from __future__ import annotations

import os
from pathlib import Path


def path_of(text: str | Path) -> Path:
    """`text` with a leading `~` or `~name` as the home folder; as it is, where nobody has that name."""
    return Path(os.path.expanduser(text))
