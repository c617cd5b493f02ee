"""What a function of the user's raised, in words."""

from __future__ import annotations

import traceback

_LONGEST = 400
"""Characters. Failures are stored with every sample, and model output can be in them."""


def describe_exception(error: BaseException) -> str:
    """`Type: message (file.py, line 7)`; the place is where it was raised."""
    try:
        message = str(error)
    except Exception:  # user code: an exception's __str__ can raise too
        message = "(its message cannot be printed)"
    words = f"{type(error).__name__}: {message}" if message else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    if not frames:
        return words
    file = frames[-1].filename.rpartition("/")[2]
    return f"{words[:_LONGEST]} ({file}, line {frames[-1].lineno})"
