"""Why a run ended with an error: what is recorded of it, and what a view says."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.store import EventRow

FAILED = "failed"
"""The event, with the `message`."""
_LINES, _LONGEST = 5, 1_000


def words_of(error: BaseException) -> str:
    """The first lines of its message as one, of an error that is none of Headrace's own after its kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    kind = type(error)
    own = kind.__module__.startswith("headrace.") and lines
    told = " ".join(([] if own else [f"{kind.__name__}:" if lines else kind.__name__]) + lines[:_LINES])
    return told if len(told) <= _LONGEST else f"{told[:_LONGEST]}…"


def error_of(status: str, events: Sequence[EventRow]) -> str | None:
    """Why the run's last process failed; None of one that did not, or could not write it down."""
    last = next((event for event in reversed(events) if event.kind in (FAILED, "started")), None)
    return str(last.data["message"]) if status == "failed" and last is not None and last.kind == FAILED else None
