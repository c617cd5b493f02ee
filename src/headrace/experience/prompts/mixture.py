"""Which source each draw of a mixture comes from.

Draw n of a source with weight w (of weights that add up to 1) is due at (n + 1/2) / w, and draws come in the order in
which they are due; of those that are due together, the earlier source's first. So after any t draws a source of k has
had t*w of them, to within (1 + w*(k - 2)) / 2: fewer than one apart for two or three sources. *Proof.* Just after the
draw due at time T, c_j = floor(T*w_j + 1/2), up to ties, so e_j = c_j - T*w_j is in [-1/2, 1/2], and t = T + the sum
of all e_j. Then c_s - t*w_s = e_s*(1 - w_s) - w_s * (sum of the other e_j), whose size is at most
((1 - w_s) + w_s*(k - 1)) / 2. In any B draws in a row a source therefore has B*w, to within 1 + w*(k - 2).

The order is a pure function of the weights, each draw of each source is in it exactly once, and any place of it is
found without the ones before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction


class Mixture:
    def __init__(self, weights: Sequence[int | float]) -> None:
        """`weights`: above 0, in any unit; as they are written in decimals, so 0.1 is a tenth."""
        exact = [Fraction(str(weight)) for weight in weights]
        unit = math.lcm(*(weight.denominator for weight in exact))
        self._weights = [int(weight * unit) for weight in exact]
        self._total = sum(self._weights)

    def draw(self, place: int) -> tuple[int, int]:
        """(source, n): at `place`, from 0, comes draw n, from 0, of the source."""
        if len(self._weights) == 1:
            return 0, place
        sources = len(self._weights)
        for source, weight in enumerate(self._weights):
            # n is about place * w, to within (1 + w*(k - 2)) / 2 and one.
            reach = (self._total + weight * (sources - 2)) / (2 * self._total) + 1
            about = place * weight // self._total
            for n in range(max(0, math.floor(about - reach)), math.ceil(about + reach) + 1):
                rank = self._rank(source, n)
                if rank == place:
                    return source, n
                if rank > place:
                    break
        raise AssertionError(f"no draw at place {place} of weights {self._weights}")

    def _rank(self, source: int, n: int) -> int:
        """How many draws come before draw n of the source."""
        own, before = self._weights[source], n
        for other, weight in enumerate(self._weights):
            if other != source:
                # (2m + 1) / weight before (2n + 1) / own, for how many m; at a tie the earlier source is first.
                due = (2 * n + 1) * weight
                count, rest = divmod(due + own, 2 * own)
                before += count - 1 if rest == 0 and other > source else count
        return before
