"""When the gate opens, for those who ask from outside."""

from __future__ import annotations

from headrace.engines.pool import EnginePool
from headrace.experience.flow import Flow
from headrace.experience.gate import GateState, Opening, Pace, opening
from headrace.observe.spent import Activity
from headrace.runtime.protocol import Clock


class GateForecast:
    """Follows how long versions and evaluations take; how long groups do it is told."""

    def __init__(self, flow: Flow, engines: EnginePool, activity: Activity, clock: Clock) -> None:
        self._flow = flow
        self._engines = engines
        self._activity = activity
        self._clock = clock
        self._number = engines.version.number
        self.groups = Pace()
        """From the start of each to its end, by their keys."""
        self._versions, self._evaluations = Pace(), Pace()
        self._versions.begin(clock.now())
        self._evaluates = False
        engines.changed.listen(self._look)
        activity.listen(self._look)

    def opening(self) -> Opening:
        """As of now."""
        return opening(self._state(), self._versions, self._evaluations, self.groups, self._clock.now())

    def _state(self) -> GateState:
        flow, engines, activity = self._flow, self._engines, self._activity
        serving = sum(member.serves for member in engines.own)
        # Of several engines some are not held; but no group starts before the first evaluation, nor beside the last.
        alone = serving <= 1 or not activity.has_begun or flow.is_finished
        return GateState(
            bound=flow.shut_by(flow.batch),
            sealed=flow.is_sealed,
            behind=engines.version.number < flow.batch,
            serves=serving > 0,
            asleep=engines.sleep.is_on,
            evaluated=activity.evaluating and alone,
        )

    def _look(self) -> None:
        """A version may have come, or an evaluation begun or ended."""
        now, number = self._clock.now(), self._engines.version.number
        if number != self._number:
            if number > self._number:
                self._versions.end(now, count=number - self._number)
            self._versions.begin(now)
            self._number = number
        if self._activity.evaluating != self._evaluates:
            self._evaluates = self._activity.evaluating
            (self._evaluations.begin if self._evaluates else self._evaluations.end)(now)
