"""Who is who among the ranks of a layout, and who sends to whom: pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headrace.config.layout import LayoutConfig
from headrace.weights.seen import Seen

Order = Literal["training", "inference"]
"""`training`: pipeline, data, context, tensor, from the outermost. `inference`: data comes before pipeline. Ranks
here, also those that only score, have the first."""


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's coordinates."""

    dp: int = 0
    pp: int = 0
    cp: int = 0
    tp: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """How many ranks there are along each axis."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    zero: Literal[0, 2, 3] = 0
    """0: each rank has all that it computes with. 2: gradients and the optimiser's state are cut up among the ranks of
    data and context. 3: weights too."""
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    """Of a pipeline: see `LayoutConfig.schedule`."""
    ep: int = 1
    """Of the ranks of data and context so many, which follow each other, share experts; no axis of their own."""
    replicas: int = 1
    """Of ranks that cut the model up so many groups, of dp / replicas ranks of data that follow each other, have all of
    it each; no axis of their own."""

    @property
    def size(self) -> int:
        return self.dp * self.tp * self.pp * self.cp

    @property
    def joint(self) -> bool:
        """Whether a pass is made by all ranks at once, or by none."""
        return self.zero > 0 or self.size > self.dp

    @property
    def model_replicas(self) -> int:
        """Replicas of the model, and of all that goes with it in training."""
        return self.replicas if self.joint else self.dp

    @property
    def of_replica(self) -> Layout:
        """That of the ranks of one replica among themselves."""
        return replace(self, dp=self.dp // self.model_replicas, replicas=1)

    def within(self, rank: int) -> tuple[int, int]:
        """The replica that the rank is of, and its rank there."""
        place, inner = self.place(rank), self.of_replica
        replica, dp = divmod(place.dp, inner.dp)
        return replica, inner.rank(replace(place, dp=dp))

    def members(self, replica: int) -> tuple[int, ...]:
        """The ranks of a replica, in the order of their ranks there."""
        inner = self.of_replica
        places = (place for _, place in inner.places())
        return tuple(self.rank(replace(place, dp=replica * inner.dp + place.dp)) for place in places)

    def rank(self, place: Place, order: Order = "training") -> int:
        outer = place.pp * self.dp + place.dp if order == "training" else place.dp * self.pp + place.pp
        return (outer * self.cp + place.cp) * self.tp + place.tp

    def place(self, rank: int, order: Order = "training") -> Place:
        """The inverse of `rank`."""
        outer, tp = divmod(rank, self.tp)
        outer, cp = divmod(outer, self.cp)
        if order == "training":
            pp, dp = divmod(outer, self.dp)
        else:
            dp, pp = divmod(outer, self.pp)
        return Place(dp, pp, cp, tp)

    def head(self, dp: int) -> int:
        """The rank that answers for this part of the data: of the last stage, the first of its tensor and context
        ranks."""
        return self.rank(Place(dp, pp=self.pp - 1))

    @property
    def heads(self) -> tuple[int, ...]:
        return tuple(self.head(dp) for dp in range(self.dp))

    def places(self) -> Iterator[tuple[int, Place]]:
        """Every rank with its coordinates."""
        return ((rank, self.place(rank)) for rank in range(self.size))


WHOLE = Layout()
"""One rank."""


def layout_of(config: LayoutConfig) -> Layout:
    return Layout(config.dp, config.tp, config.pp, config.cp, config.stage, config.schedule, config.ep, config.replicas)


def readers(layout: Layout, seen: Sequence[Seen]) -> list[int]:
    """For each rank of one replica the one that reads rows for it, of those on its machine that are given the same: of
    a part of the data all stages, tensor and context ranks. Its head, where that is among them, else the first one.
    `seen`: where each rank is."""
    found = []
    for rank, place in layout.places():
        same = (other for other, at in layout.places() if at.dp == place.dp)
        near = [mate for mate in (layout.head(place.dp), *same) if mate == rank or seen[mate].shares_memory(seen[rank])]
        found.append(near[0])
    return found


def grouping(senders: int, receivers: int) -> list[list[int]]:
    """Which senders each receiver hears, where senders are tied to receivers once, as AReaL's rollout workers are to
    the heads of its data: a table for whoever ties some so. Nothing here is: rows go by ref to whoever trains them.

    Each sender has one receiver. Receivers have as many as each other, or the first ones one more, of those left over
    behind the even shares. With fewer senders than receivers the first have one each, and the last hear nobody."""
    share, more = divmod(senders, receivers)
    return [
        [*range(one * share, (one + 1) * share), *([share * receivers + one] if one < more else [])]
        for one in range(receivers)
    ]
