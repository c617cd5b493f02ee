"""What the trainer's and the engines' time went to: at each moment to one thing, so that the seconds add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager

OTHER = "other"
WAITS = "waits: "
"""Begins the name of what somebody with nothing to do waited for."""

TRAINS, SCORES, PUBLISHES, CHECKPOINTS = "trains", "scores", "publishes", "checkpoints"
CHANGES = "takes and gives its turn"
ROWS = "rows of the batch"
"""What the trainer waits for; whose fault that is, the run's state tells."""
COMPUTES, SWAPS = "computes", "swaps weights"

GENERATION = f"{WAITS}generation"
REWARDS = f"{WAITS}rewards and environments"
COLUMNS = f"{WAITS}scores and advantages"
CRITIC = f"{WAITS}the critic"
EVALUATION = f"{WAITS}the evaluation"
NEW_WEIGHTS = f"{WAITS}new weights"
TRAINER = f"{WAITS}the trainer"
NO_PROMPTS = f"{WAITS}the end, as every prompt is started"


class Activity:
    """What the parts of a run are at, as far as time is counted by it. Whoever counts is told of each change."""

    def __init__(self) -> None:
        self.trainer = OTHER
        self.has_begun = False
        """Whether the trainer has been at anything."""
        self.evaluating = False
        self.lent = False
        """The trainer's devices are, to engines."""
        self.computing: Counter[str] = Counter()
        """Calls in flight, by lane."""
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Have `listener` called at each change."""
        self._listeners.append(listener)

    def changed(self) -> None:
        for listener in self._listeners:
            listener()

    @contextmanager
    def training(self, what: str) -> Iterator[None]:
        """The trainer is at `what`; then again at what it was at before."""
        before, self.trainer, self.has_begun = self.trainer, what, True
        self.changed()
        try:
            yield
        finally:
            self.trainer = before
            self.changed()

    @contextmanager
    def evaluation(self) -> Iterator[None]:
        self.evaluating = True
        self.changed()
        try:
            yield
        finally:
            self.evaluating = False
            self.changed()

    def lends(self, *, lent: bool) -> None:
        """Whether the trainer's devices are lent from now on."""
        self.lent = lent
        self.changed()

    @contextmanager
    def computes(self, lane: str) -> Iterator[None]:
        """A call is in flight on `lane`."""
        self.computing[lane] += 1
        self.changed()
        try:
            yield
        finally:
            self.computing[lane] -= 1
            self.changed()


class Spent:
    """Shares out seconds that grow elsewhere. Whoever changes what they are spent on calls `look`."""

    def __init__(self, seconds: Callable[[], float], what: Callable[[], str]) -> None:
        """`seconds`: never falls. `what`: they are spent on from now on."""
        self._seconds = seconds
        self._what = what
        self._totals: dict[str, float] = {}
        self._until = seconds()
        self._now = what()

    def look(self, until: float | None = None) -> None:
        """What they are spent on may have changed: those up to now count as what it was before. `until`: what `seconds`
        gives now, where that is known."""
        until = self._seconds() if until is None else until
        self._totals[self._now] = self._totals.get(self._now, 0.0) + (until - self._until)
        self._until, self._now = until, self._what()

    def totals(self) -> dict[str, float]:
        """Up to now. They add up to what `seconds` grew by."""
        self.look()
        return dict(self._totals)


def waits(spent: Mapping[str, float]) -> dict[str, float]:
    """Of these seconds those that were waited, by what for."""
    return {name.removeprefix(WAITS): seconds for name, seconds in spent.items() if name.startswith(WAITS)}


class AtWork:
    """Seconds in which each of several was at work: things that one is at together count once."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._things: Counter[Hashable] = Counter()
        """In flight, by who is at them."""
        self._since: dict[Hashable, float] = {}
        self._totals: dict[Hashable, float] = {}

    @contextmanager
    def at_it(self, *who: Hashable) -> Iterator[None]:
        """All of these are at one thing more."""
        now = self._now()
        for each in who:
            if not self._things[each]:
                self._since[each] = now
            self._things[each] += 1
        try:
            yield
        finally:
            now = self._now()
            for each in who:
                self._things[each] -= 1
                if not self._things[each]:
                    self._totals[each] = self._totals.get(each, 0.0) + now - self._since.pop(each)

    def seconds(self, who: Hashable) -> float:
        """Up to now."""
        since = self._since.get(who)
        return self._totals.get(who, 0.0) + (0.0 if since is None else self._now() - since)
