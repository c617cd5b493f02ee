"""Watches whether anything is generated: ends a run that no engine serves any more."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.engines.member import last_failure
from headrace.engines.pool import EnginePool
from headrace.engines.pool_state import EngineState
from headrace.engines.protocol import EngineError
from headrace.roles.context import RoleContext
from headrace.runtime.protocol import WaitTimeout
from headrace.weights.plane import WeightError, WeightReceiver

_RESUME = "resume the run to go on"


class EnginesLost(EngineError):
    """Nothing is generated, and nothing will be: the run stops, with a checkpoint."""


class EngineWatchRole:
    """Two things are waited for no longer than `engine.return_deadline_s`: that any engine of the policy and the engine
    of each judge serves, and, where the gate is shut since no engine could take the newest version, that one takes
    it."""

    def __init__(
        self,
        context: RoleContext,
        pool: EnginePool,
        receiver: WeightReceiver | None = None,
        judges: Sequence[EnginePool] = (),
    ) -> None:
        self._context = context
        self._pool = pool
        self._receiver = receiver
        self._served = (pool, *judges)
        self._stuck_since: float | None = None

    async def run(self) -> None:
        """Until cancelled, as the run ends. Raises EnginesLost."""
        flow, clock = self._context.flow, self._context.runtime.clock
        while True:
            left = self._left()
            try:
                await flow.changed.wait(clock, left, "")
            except WaitTimeout:
                continue

    def _left(self) -> float:
        """Seconds until something must have changed. Raises EnginesLost once it should have."""
        pool, deadline = self._pool, self._pool.return_deadline_s
        for each in self._served:
            if (failure := each.failure) is not None and self._is_wanted():
                raise EnginesLost(f"{each.name} died: {failure}; {_RESUME}") from failure
        downs = [(each, each.down_s) for each in self._served]
        stuck = self._stuck_s()
        waits = [seconds for seconds in (*(down for _, down in downs), stuck) if seconds is not None]
        if not waits:
            return self._context.stall_timeout_s
        if max(waits) < deadline:
            return deadline - max(waits)
        for each, down in downs:
            if down is not None and down >= deadline and self._is_wanted():
                raise EnginesLost(down_for(each, deadline))
        if stuck is not None and stuck >= deadline:
            raise EnginesLost(
                f"no engine could take the newest weights for {deadline:g} s (engine.return_deadline_s), and nothing "
                f"may start on {pool.version}; {_RESUME}"
            )
        return deadline

    def _is_wanted(self) -> bool:
        """Whether anything is still to be generated."""
        flow = self._context.flow
        if self._context.activity.evaluating:
            return True
        return flow.running_groups > 0 or flow.shut_by(self._pool.version.number) != "prompts"

    def _stuck_s(self) -> float | None:
        """Seconds since swaps fail, or have nothing to take, and no group may start for want of a newer version."""
        try:
            latest = None if self._receiver is None else self._receiver.latest()
        except WeightError:  # whoever follows it hears of that, and tries again
            latest = None
        there = [member for member in self._pool.members if member.state is not EngineState.GONE]
        fails = any(member.failed_swaps or member.misses_version for member in there)
        behind = latest is not None and latest.number > self._pool.version.number
        waits = behind and self._context.flow.shut_by(self._pool.version.number) == "staleness"
        shut = fails and (waits or not self._pool.serves_line)
        now = self._context.runtime.clock.now()
        if not shut:
            self._stuck_since = None
            return None
        if self._stuck_since is None:
            self._stuck_since = now
        return now - self._stuck_since


def down_for(pool: EnginePool, deadline_s: float) -> str:
    """Why the run ends once no engine of it has served for the deadline, in words."""
    failure = last_failure(pool.members)
    why = f"died: {failure}" if failure is not None else "could not take new weights, and holds none that are whole"
    which = "no engine" if pool.judge is None else pool.name
    has = "has" if pool.judge is None else "has not"
    return f"{which} {has} served for {deadline_s:g} s (engine.return_deadline_s); {pool.name} {why}; {_RESUME}"
