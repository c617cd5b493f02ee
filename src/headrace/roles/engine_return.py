"""Brings an engine back that died."""

from __future__ import annotations

from contextlib import suppress

from headrace.engines.member import Member
from headrace.engines.pool import EnginePool
from headrace.engines.pool_state import EngineState
from headrace.roles.attempts import words_of_attempt
from headrace.roles.context import RoleContext
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.supervision import ENGINE, RETURN, after_failure
from headrace.weights.plane import WeightReceiver


async def come_back(
    context: RoleContext, pool: EnginePool, member: Member, receiver: WeightReceiver | None = None
) -> None:
    """Build the engine of `member` anew until it serves; what fails is tried again after a pause, which grows. How long
    the run bears with that, the engine watch decides. Not while the pool sleeps, or the trainer has its device, and no
    more once it is dismissed. `receiver`: see `Revive`."""
    attempts = 0

    def is_to_return() -> bool:
        return member.state is EngineState.EJECTED

    while is_to_return():
        pause = max(
            after_failure(ENGINE, member.deaths).pause_s if member.deaths else 0.0,
            attempts and after_failure(RETURN, attempts).pause_s,
        )
        await context.runtime.clock.sleep(pause)
        if pool.sleep.is_on or member.away or not is_to_return():
            return
        try:
            await pool.come_back(member, receiver)
        except Exception as error:  # whatever building it raises: it is tried until the deadline
            if not is_to_return():
                return
            attempts += 1
            told = words_of_attempt(error, f"the return of {member.name}")
            context.report("engine_not_back", {**pool.named(member), "message": pool.said_of(member, told)})


class EngineReturnRole:
    """Of one engine whose weights stay as they were loaded. Where they follow the trainer's, `WeightFollowerRole` does
    that too."""

    def __init__(self, context: RoleContext, pool: EnginePool, member: Member) -> None:
        self._context = context
        self._pool = pool
        self._member = member

    async def run(self) -> None:
        """Until cancelled, as the run ends. Raises StoreError."""
        context, pool = self._context, self._pool
        while True:
            pool.look()
            pool.events.tell_what_is_left()
            if self._member.state is EngineState.EJECTED:
                await come_back(context, pool, self._member)
            else:
                with suppress(WaitTimeout):
                    await pool.changed.wait(context.runtime.clock, context.stall_timeout_s, "")
