"""Every number of a run's record: what it means, when to worry, what to do. docs/metrics.md and alarms come from it."""

from __future__ import annotations

from headrace.observe.alarms import RunSoFar
from headrace.observe.metrics.batch import CORRECTION, EPOCH, LOST, REWARDS, SIZES, STALENESS, STEP, TIMES
from headrace.observe.metrics.metric import Alarm, Metric
from headrace.observe.metrics.run import SUMMARY, TOTALS

BATCH = (*REWARDS, *STEP, *CORRECTION, *STALENESS, *SIZES, *LOST, *TIMES)
ALL = (*BATCH, *EPOCH, *TOTALS, *SUMMARY)

__all__ = ["ALL", "BATCH", "EPOCH", "SUMMARY", "TOTALS", "Alarm", "Metric", "ringing"]


def ringing(run: RunSoFar) -> tuple[Alarm, ...]:
    """The alarms as of the last batch, in the order of the table."""
    found = [(metric, metric.rule(run)) for metric in ALL if metric.rule is not None]
    return tuple(
        Alarm(metric.name, finding, metric.advice(finding)) for metric, finding in found if finding is not None
    )
