"""A number of the record as a row: what it means, when to worry, what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.observe.alarms import Rule


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    """Of the field; in `summary.json` with the names of what it stands in, joined by dots."""
    unit: str
    meaning: str
    worry: str = ""
    """When to; empty where no value of it is a worry."""
    act: str = ""
    """What to do then, with the keys of the config in backticks."""
    rule: Rule | None = None
    """What its alarm rings by."""
    act_for: Mapping[str, str] = field(default_factory=dict)
    """What to do by cause, where the rule's words end with the cause: that alone is told then, not all of `act`."""

    def advice(self, finding: str) -> str:
        """What to do about what the rule found, as plain text."""
        known = (act for cause, act in self.act_for.items() if finding.endswith(cause))
        return next(known, self.act).replace("`", "")


@dataclass(frozen=True, slots=True)
class Alarm:
    """A metric that asks to be looked at."""

    metric: str
    finding: str
    """What was seen, with its numbers."""
    act: str
    """What to do, as plain text."""

    @property
    def words(self) -> str:
        return f"{self.finding}: {self.act}"
