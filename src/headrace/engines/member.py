"""An engine's place in a pool, which outlives the engine that fills it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields, replace
from operator import attrgetter

from headrace.engines.pool_state import UP, EngineState, EngineView
from headrace.engines.protocol import Engine, EngineError, EngineStats
from headrace.runtime.breakable import Breakable
from headrace.runtime.supervision import ENGINE, LossWindow, Measure, Often, after_failure
from headrace.weights.plane import WeightReceiver
from headrace.weights.version import Version

Revive = Callable[[Engine, WeightReceiver | None], Awaitable[Engine]]
"""An engine in the place of one that died, started, with the newest whole version; with None, with the weights that
this one was loaded with."""


class Member:
    def __init__(
        self,
        index: int,
        engine: Engine,
        revive: Revive | None = None,
        name: str = "",
        *,
        lent: bool = False,
        often: Often | None = None,
    ) -> None:
        """`revive` None: it does not come back from a death. `name`: as it is told of; engine N unless given. `lent`:
        see `EngineView.lent`. `often`: with which of its deaths it is given up, beside those without a token between;
        None: with no other."""
        self.index = index
        self.name = name or f"engine {index}{' (lent)' if lent else ''}"
        self.lent = lent
        self.away = False
        """Of one that is lent: it was taken back, and sleeps until it is lent again."""
        self.engine = engine
        self.revive = revive
        self.state = EngineState.STARTING
        self.making: Breakable[Engine] | None = None
        """The engine that is to be in the place of one that died."""
        self.outstanding = 0
        self.pins = 0
        self.deaths = 0
        """In a row, without a token between."""
        self._losses = LossWindow(often)
        self.failed_swaps = 0
        """In a row."""
        self.misses_version = False
        """A newer version is published, and not where this one takes it from."""
        self.failure: Exception | None = None
        """What it was lost by; None once another engine is in its place."""
        self.lost_at = 0.0
        """When that was, in seconds."""
        self.dismissed = False
        """It was taken out of the run."""
        self._before = NO_STATS

    @property
    def version(self) -> Version | None:
        return self.engine.version if self.is_up else None

    @property
    def is_up(self) -> bool:
        """It serves, or rests until it has taken a version."""
        return self.state in UP

    @property
    def serves(self) -> bool:
        """As far as is known: see `lives`."""
        return self.is_up and not self.engine.rests

    @property
    def view(self) -> EngineView:
        return EngineView(
            self.index,
            self.state,
            self.version,
            self.outstanding,
            self.pins,
            max(self.deaths, self.failed_swaps),
            self.is_up and self.engine.rests,
            self.lent,
        )

    @property
    def lives(self) -> bool:
        """Whether it serves now, and has not died unnoticed."""
        return self.serves and self.engine.failure is None

    def died(self, why: Exception, now: float) -> None:
        """It serves nothing more since `now`, in seconds; it comes back, if it can."""
        self.deaths += 1
        self.failed_swaps = 0
        returns = self.revive is not None and after_failure(ENGINE, self.deaths).measure is Measure.RESTART
        too_often = self._losses.lost(now)
        if returns and too_often is not None:
            why, returns = EngineError(f"{why}; that was so {too_often}"), False
        self.failure, self.lost_at = why, now
        self.state = EngineState.EJECTED if returns else EngineState.GONE

    def gone(self, why: Exception, now: float, *, dismissed: bool = False) -> None:
        """It serves nothing more since `now`, and does not come back. `dismissed`: since it was taken out of the
        run."""
        self.failure, self.lost_at, self.dismissed = why, now, dismissed
        self.state = EngineState.GONE

    def replace(self, engine: Engine) -> None:
        """`engine` serves in its place. What the one before did still counts."""
        self._before = summed([self._before, past(self.engine.stats())])
        self.engine = engine
        self.failure = None
        self.state = EngineState.SERVING

    def proven(self) -> None:
        """It has given a token."""
        self.deaths = 0

    def stats(self) -> EngineStats:
        now = self.engine.stats()
        return now if self._before is NO_STATS else summed([self._before, now])


def last_failure(members: Sequence[Member]) -> Exception | None:
    """By which one was lost last, and is not back; None if none was. Those that were taken out of the run are left
    out."""
    lost = [member for member in members if member.failure is not None and not member.dismissed]
    return max(lost, key=lambda member: member.lost_at).failure if lost else None


NO_STATS = EngineStats(0, 0, 0, 0, 0, 0.0, 0.0)
_values = attrgetter(*(field.name for field in fields(EngineStats)))


def past(stats: EngineStats) -> EngineStats:
    """Of an engine that has ended: its totals, and no load."""
    return replace(stats, running=0, waiting=0)


def summed(every: Sequence[EngineStats]) -> EngineStats:
    return every[0] if len(every) == 1 else EngineStats(*map(sum, zip(*map(_values, every), strict=True)))
