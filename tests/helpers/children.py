"""Processes that this one has started."""

from __future__ import annotations

from contextlib import suppress

import psutil


def child(words: str) -> psutil.Process:
    """The only one that runs and has these words in its title or on its command line: one that has ended, and that
    nobody has waited for yet, has neither."""
    found = []
    for each in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # also of a zombie
            if words in " ".join(each.cmdline()):
                found.append(each)
    (only,) = found
    return only
