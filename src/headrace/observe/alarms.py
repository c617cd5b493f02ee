"""What of a run's record asks to be looked at."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.observe.record import BatchRecord

_BATCHES = 5
"""Over which the first and the last values are meaned."""
_FALL = 0.1


def alarms(batches: Sequence[BatchRecord]) -> tuple[str, ...]:
    """A line for each thing that is wrong as of the last batch."""
    found = [_kept_mass(batches)]
    return tuple(line for line in found if line is not None)


def _kept_mass(batches: Sequence[BatchRecord]) -> str | None:
    """What lies outside the kept sets is regularised by nothing: the policy can drift there unseen."""
    masses = [batch.kept_mass for batch in batches if batch.kept_mass is not None]
    if len(masses) < 2 * _BATCHES:
        return None
    first, last = sum(masses[:_BATCHES]) / _BATCHES, sum(masses[-_BATCHES:]) / _BATCHES
    if last >= first - _FALL:
        return None
    return (
        f"kept mass fell from {first:.2f} to {last:.2f}: the policy moves probability to what top_p and top_k cut "
        "off, where neither loss nor KL sees it; raise them, or lower the learning rate"
    )
