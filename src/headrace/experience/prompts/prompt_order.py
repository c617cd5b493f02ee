"""Which row stands at which position of a run over several sources, and under a curriculum.

Draws of a source come from its epochs, one after another, and within an epoch every row is drawn exactly once, whatever
the weights and the curriculum are. A source of little weight is in its first epoch for long, one of much weight begins
many.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.config import ConfigError
from headrace.experience.prompts.dataset import PromptOrder
from headrace.experience.prompts.mixture import Mixture


class RowOrder(Protocol):
    """Of one source: which row is drawn at a position of an epoch."""

    def row(self, epoch: int, position: int) -> int: ...

    def drawn(self, epoch: int, position: int, row: int) -> None:
        """An earlier process of the run drew this row there."""
        ...

    def learn(self, row: int, pass_rate: float) -> None:
        """The last pass rate of a row, from now on."""
        ...


_NEVER_DRAWN, _NO_RATE = -1.0, 2.0
"""In the place of a distance, which is from 0 to 1."""


class FixedOrder:
    """Shuffled, or as in the file; by numbers where they are given, equal ones as without them."""

    def __init__(self, shuffled: PromptOrder, numbers: NDArray[np.float64] | None, *, descending: bool) -> None:
        self._shuffled = shuffled
        self._keys = None if numbers is None else -numbers if descending else numbers
        self._sorted: tuple[int, NDArray[np.intp]] | None = None
        """Of the epoch that was asked for last."""

    def row(self, epoch: int, position: int) -> int:
        if self._keys is None:
            return self._shuffled.row(epoch, position)
        if self._sorted is None or self._sorted[0] != epoch:
            plain = self._shuffled.rows(epoch)
            self._sorted = epoch, plain[np.argsort(self._keys[plain], kind="stable")]
        return int(self._sorted[1][position])

    def drawn(self, epoch: int, position: int, row: int) -> None:
        pass

    def learn(self, row: int, pass_rate: float) -> None:
        pass


class PassRateOrder:
    """Rows that were never drawn first, then those whose pass rate is nearest to a target, then those that were drawn
    and have none yet; equal ones as shuffled. What is drawn depends on what was learnt before, so positions are asked
    for in their order, each once."""

    def __init__(self, shuffled: PromptOrder, target: float) -> None:
        self._shuffled = shuffled
        self._target = target
        self._distances = np.full(shuffled.size, _NEVER_DRAWN, np.float32)
        """Of each row's pass rate from the target."""
        self._epoch = -1
        self._place = np.empty(0, np.intp)
        """Of each row in the epoch's shuffle."""
        self._left = np.empty(0, np.bool_)
        """Rows that the epoch has not drawn."""

    def row(self, epoch: int, position: int) -> int:
        self._enter(epoch)
        if int(np.count_nonzero(self._left)) != self._shuffled.size - position:
            raise ValueError(f"position {position} of epoch {epoch} is not the next one to be drawn")
        rows = np.flatnonzero(self._left)
        distances = self._distances[rows]
        nearest = rows[distances == distances.min()]
        row = int(nearest[self._place[nearest].argmin()])
        self.drawn(epoch, position, row)
        return row

    def drawn(self, epoch: int, position: int, row: int) -> None:
        self._enter(epoch)
        self._left[row] = False
        if self._distances[row] == _NEVER_DRAWN:
            self._distances[row] = _NO_RATE

    def learn(self, row: int, pass_rate: float) -> None:
        self._distances[row] = abs(pass_rate - self._target)

    def _enter(self, epoch: int) -> None:
        if epoch != self._epoch:
            rows = self._shuffled.rows(epoch)
            self._epoch = epoch
            self._place = np.empty_like(rows)
            self._place[rows] = np.arange(len(rows))
            self._left = np.ones(len(rows), np.bool_)


class MixedOrder:
    """Of all sources. An epoch of the run is as many positions as they have rows together."""

    def __init__(self, orders: Sequence[RowOrder], sizes: Sequence[int], weights: Sequence[float]) -> None:
        self.size = sum(sizes)
        self._orders = orders
        self._sizes = sizes
        self._starts = [0, *accumulate(sizes)]
        self._mixture = Mixture(weights)

    def row(self, epoch: int, position: int) -> int:
        """Index into the dataset. Raises IndexError unless 0 <= position < size."""
        source, own_epoch, own_position = self._draw(epoch, position)
        return self._starts[source] + self._orders[source].row(own_epoch, own_position)

    def restore(self, drawn: Iterable[tuple[int, int, int]]) -> None:
        """(epoch, position, row) of all that earlier processes of the run drew, in the order of positions. Raises
        ConfigError where a row is not of the position's source."""
        for epoch, position, row in drawn:
            source, own_epoch, own_position = self._draw(epoch, position)
            own = row - self._starts[source]
            if not 0 <= own < self._sizes[source]:
                raise ConfigError(
                    f"the run drew row {row} at position {position} of epoch {epoch}, which is not of that source: the "
                    "data were changed since the run began; restore them, or begin again with --fresh"
                )
            self._orders[source].drawn(own_epoch, own_position, own)

    def learn(self, pass_rates: Iterable[tuple[int, float]]) -> None:
        """(row, pass rate) of groups, in the order in which they were issued."""
        for row, rate in pass_rates:
            source = int(np.searchsorted(self._starts, row, side="right")) - 1
            self._orders[source].learn(row - self._starts[source], rate)

    def _draw(self, epoch: int, position: int) -> tuple[int, int, int]:
        """The source at a position, and the epoch and position of its own."""
        if not 0 <= position < self.size:
            raise IndexError(f"position {position} of an epoch of {self.size} prompts")
        source, n = self._mixture.draw(epoch * self.size + position)
        return source, *divmod(n, self._sizes[source])
