"""Samples that fail: told when they begin to, and the end of a run whose first ones all fail alike."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.experience.drops import NothingToTrain
from headrace.experience.failures import failure_kind
from headrace.experience.header import GroupHeader
from headrace.experience.sample import Group
from headrace.observe.events import EventSink

_LEAST_PROMPTS = 2
"""A fault that lies in one row of the data is no reason to end."""


class FailureWatch:
    """Looks at all groups that end, those of evaluations included."""

    def __init__(self, report: EventSink, *, worth: int) -> None:
        """`worth`: samples of a batch."""
        self._report = report
        self._worth = worth
        self._told: set[str] = set()
        """Kinds of failure of which there is an event."""
        self._failed = 0
        self._prompts: set[str] = set()
        self._is_over = False
        """A sample went well, or they fail in several ways: the run is worth going on with."""

    def look_at(self, group: Group | GroupHeader) -> None:
        """The first failure of each kind is an event, in words. Raises NothingToTrain once as many samples as a batch
        has, and so all since the process began, have failed in one way."""
        failures = [sample.failure for sample in group.samples]
        for failure in failures:
            if failure is not None and (kind := failure_kind(failure)) not in self._told:
                self._told.add(kind)
                self._report("failed_sample", {"prompt": group.prompt_id, "message": failure})
        if not self._is_over:
            self._look_at_first(group.prompt_id, failures)

    def _look_at_first(self, prompt_id: str, failures: Sequence[str | None]) -> None:
        if None in failures or len(self._told) > 1:
            self._is_over = True
            return
        self._failed += len(failures)
        self._prompts.add(prompt_id)
        if self._failed >= self._worth and len(self._prompts) >= _LEAST_PROMPTS:
            raise NothingToTrain(
                f"all of the first {self._failed} samples failed, the last one with {failures[-1]!r}; mend that, and "
                "--resume the run, or begin again with --fresh"
            )
