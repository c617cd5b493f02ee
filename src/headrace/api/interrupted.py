"""Being interrupted."""

from __future__ import annotations

from typing import Any


class Interrupted(KeyboardInterrupt):
    """A signal came, and the run has stopped as it does between two batches."""

    def __init__(self, run: Any, signal: str, *, resumable: bool) -> None:
        mend = (
            f"go on with dir={str(run.path)!r}, resume=True"
            if resumable
            else "what was given of it in Python has a closure, so it cannot be resumed"
        )
        super().__init__(f"stopped by {signal}; {mend}")
        self.run = run
        """What there is of it."""
