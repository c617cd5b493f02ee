"""Counts what the time of a run's trainer and engines goes to, moment by moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from headrace.controller.device_time import DeviceTime
from headrace.controller.engines_mean import EnginesMean
from headrace.engines.pool import EnginePool
from headrace.experience.flow import Flow
from headrace.observe import spent
from headrace.observe.spent import Activity, Spent
from headrace.roles.actors.actor import TRAINER_LANE
from headrace.roles.actors.critic import CRITIC_LANE
from headrace.runtime.protocol import Clock

_BUSY, _LENT = "busy", "lent"
_KEYS = {"staleness": "max_staleness", "ahead": "ahead", "bytes": "table_gib"}
"""Of the section `async`."""


class TimeSpent:
    """Looks whenever the flow or a role's activity changes: in between, nothing does that time is counted by.

    The trainer is at one thing at a time. While it waits for rows, what stands in the way follows from the flow: groups
    in generation are with the engines, or, while these have nothing to do, with rewards and environments. Of the
    engines, the seconds without work are shared out by what keeps work from them.
    """

    def __init__(
        self,
        clock: Clock,
        engines: EnginePool,
        flow: Flow,
        activity: Activity,
        *,
        on_policy: bool,
        trains: bool = True,
        others: Callable[[], Mapping[str, float]] = dict,
        devices: Callable[[str], Sequence[str]] = lambda who: (),
    ) -> None:
        """`on_policy`: the engines wait for each new version by design, not at a bound that could be raised. `trains`:
        whether there is a trainer. `others`: seconds that others with a model computed, by who; none falls. `devices`:
        those that each is on now, in the words of `busy_s`."""
        self._trains = trains
        self._has_engines = not engines.is_absent
        self._clock = clock
        self._engines = engines
        self._flow = flow
        self._activity = activity
        self._on_policy = on_policy
        self._began = clock.now()
        self._mean = EnginesMean(engines)
        self._trainer = Spent(clock.now, self._trainer_is_at)
        self._idle = Spent(self._idle_s, self._engines_lack)
        self._idle_of_trainer = Spent(self._idle_s, self._trainer_is_at)
        self._lanes = {lane: Spent(clock.now, partial(self._lane_is_at, lane)) for lane in (TRAINER_LANE, CRITIC_LANE)}
        self._lent = Spent(clock.now, self._lent_is)
        self._engines_before = [member.stats().busy_s for member in engines.members]
        self._others = others
        self._others_before = others()
        self._devices = DeviceTime(self._alone_s, devices)
        engines.changed.listen(self._devices.look)
        engines.changed.listen(self._look)
        activity.listen(self._look)
        flow.changed.listen(self._look)

    def trainer_s(self) -> dict[str, float]:
        """By the names of `headrace.observe.spent`; they add up to the time since this was made. Nothing where there is
        no trainer."""
        if not self._trains:
            return {}
        seconds = self._trainer.totals()
        idle = min(self._idle_of_trainer.totals().get(spent.GENERATION, 0.0), seconds.get(spent.GENERATION, 0.0))
        if idle:
            seconds[spent.GENERATION] -= idle
            seconds[spent.REWARDS] = seconds.get(spent.REWARDS, 0.0) + idle
        return {name: value for name, value in seconds.items() if value > 0}

    def engines_s(self) -> dict[str, float]:
        """The same of the engines, of several the mean of those that there were at each moment; nothing where there
        are none. Those that are lent do not count: they have nothing to do while the trainer has their devices."""
        if not self._has_engines:
            return {}
        left = self._clock.now() - self._began
        idle = self._idle.totals()
        parts = {spent.COMPUTES: self._mean.computes_s, spent.SWAPS: self._mean.swaps_s, **idle}
        seconds: dict[str, float] = {}
        for name, value in parts.items():
            # A swap is counted from the last decode step on, and may so take a little of what is idle.
            seconds[name] = min(max(value, 0.0), left)
            left -= seconds[name]
        seconds[spent.OTHER] = seconds.get(spent.OTHER, 0.0) + left
        return {name: value for name, value in seconds.items() if value > 0}

    def busy_s(self) -> dict[str, float]:
        """Seconds in which each that has a device computed: an engine, as `engine 0`, the trainer, the critic, a model
        that scores, as `reference`, the engine of a judge; of a model in several ranks each of them too, as
        `trainer/1`. Who had nothing to compute is not told."""
        return {name: seconds for name, seconds in self._by_who().items() if seconds > 0}

    def device_s(self) -> dict[str, float]:
        """The same by device, of all that were on it added up; a model in several ranks counts by these."""
        return self._devices.totals()

    def _alone_s(self) -> dict[str, float]:
        """Nobody twice."""
        found = self._by_who()
        in_ranks = {name.rpartition("/")[0] for name in found}
        return {name: seconds for name, seconds in found.items() if name not in in_ranks}

    def _by_who(self) -> dict[str, float]:
        found = {name: seconds - self._others_before.get(name, 0.0) for name, seconds in self._others().items()}
        for member in self._engines.members if self._has_engines else ():
            known = member.index < len(self._engines_before)
            found[member.name] = member.stats().busy_s - (self._engines_before[member.index] if known else 0.0)
        return found | {lane: spent_s.totals().get(_BUSY, 0.0) for lane, spent_s in self._lanes.items()}

    def lent_s(self) -> float:
        """Seconds in which the trainer's devices were lent to engines."""
        return self._lent.totals().get(_LENT, 0.0)

    def _lent_is(self) -> str:
        return _LENT if self._activity.lent else spent.OTHER

    def _lane_is_at(self, lane: str) -> str:
        return _BUSY if self._activity.computing[lane] else spent.OTHER

    def _look(self) -> None:
        for lane in self._lanes.values():
            lane.look()
        self._lent.look()
        self._trainer.look()
        idle_s = self._idle_s()
        self._idle.look(idle_s)
        self._idle_of_trainer.look(idle_s)

    def _idle_s(self) -> float:
        self._mean.look()
        return self._mean.idle_s

    def _trainer_is_at(self) -> str:
        activity, flow = self._activity, self._flow
        if activity.trainer == spent.OTHER:
            return spent.EVALUATION if activity.evaluating else spent.OTHER
        if activity.trainer != spent.ROWS:
            return activity.trainer
        if activity.computing[TRAINER_LANE]:
            return spent.SCORES
        if flow.is_sealed:
            return spent.COLUMNS
        if not self._has_engines:
            return spent.OTHER
        if flow.running_groups:
            return spent.GENERATION
        if activity.evaluating:
            return spent.EVALUATION
        return spent.NEW_WEIGHTS if self._is_behind else spent.GENERATION

    def _engines_lack(self) -> str:
        flow = self._flow
        if flow.running_groups or self._activity.evaluating:
            return spent.REWARDS
        if flow.is_finished or not self._activity.has_begun:
            return spent.OTHER
        bound = flow.shut_by(self._engines.version.number)
        if bound is None:
            return spent.OTHER
        if bound == "prompts":
            return spent.NO_PROMPTS
        if bound == "staleness" and self._is_behind:
            return spent.NEW_WEIGHTS
        return spent.TRAINER if self._on_policy else f"{spent.TRAINER} ({_KEYS[bound]})"

    @property
    def _is_behind(self) -> bool:
        """Whether there is a version that the engines have not taken."""
        return self._engines.version.number < self._flow.batch
