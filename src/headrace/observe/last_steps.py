"""What is done at a run's end, whatever ended it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.observe.failure import words_of

logger = logging.getLogger(__name__)


class LastSteps:
    """Each of them is tried, whatever those before it raise, and none hides what ended the run."""

    def __init__(self, ended_by: BaseException | None) -> None:
        """`ended_by`: the error that ended the run, which the user must hear of."""
        self._ended_by = ended_by
        self._failed: Exception | None = None
        self._broke_off: BaseException | None = None

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Within, an error is told in the log, as one of `what`."""
        try:
            yield
        except Exception as error:
            logger.warning("at the run's end, %s: %s", what, words_of(error))
            self._failed = self._failed or error
        except BaseException as error:  # cancelled, or interrupted: those that are left are tried all the same
            self._broke_off = self._broke_off or error

    def done(self) -> None:
        """Raises what broke one of the steps off; else what the first that failed raised, unless the run has ended with
        an error."""
        if self._broke_off is not None:
            raise self._broke_off
        if self._failed is not None and self._ended_by is None:
            raise self._failed
