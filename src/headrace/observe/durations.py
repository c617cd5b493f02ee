"""How long calls took: counts that can be added up and subtracted, in steps of a tenth."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

_STEPS = 24
"""A decade: neighbours differ by a tenth."""
_SHORTEST_S = 1e-6


class Durations:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Calls by seconds, as text."""

    def add(self, seconds: float) -> None:
        step = round(_STEPS * math.log10(max(seconds, _SHORTEST_S)))
        self.counts[f"{10 ** (step / _STEPS):.2g}"] += 1


def quantile(counts: Mapping[str, int], share: float) -> float | None:
    """Seconds within which `share` of the calls ended, to a twentieth; None if there were none."""
    needed = share * sum(counts.values())
    seen = 0
    for text, count in sorted(counts.items(), key=lambda item: float(item[0])):
        seen += count
        if count and seen >= needed:
            return float(text)
    return None
