"""The weight follower: has one engine take each new version, and brings it back when it died."""

from __future__ import annotations

from contextlib import suppress

from headrace.engines.member import Member
from headrace.engines.pool import EnginePool
from headrace.engines.pool_state import EngineState
from headrace.engines.protocol import EngineError, SwapMode, Tag, VersionHeld
from headrace.roles.attempts import words_of_attempt
from headrace.roles.context import RoleContext
from headrace.roles.engine_return import come_back
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.supervision import SWAP, Measure, after_failure
from headrace.store import StoreError
from headrace.weights.plane import NotThereYet, WeightError, WeightReceiver

NAME = "weight_follower"


class WeightFollowerRole:
    """Of one engine of the pool. What fails is tried again after a pause, which grows; the engine goes on meanwhile
    with the version that it has, and the other engines with theirs; so it does while a version is not where it is taken
    from. How long the run bears with that, the engine watch decides."""

    def __init__(
        self, context: RoleContext, pool: EnginePool, member: Member, receiver: WeightReceiver, mode: SwapMode
    ) -> None:
        """`pool.changed` is to be notified of publications as well."""
        self._context = context
        self._pool = pool
        self._member = member
        self._receiver = receiver
        self._mode = mode

    async def run(self) -> None:
        """Until cancelled, as the run ends. Raises StoreError."""
        while True:
            self._pool.look()
            self._pool.events.tell_what_is_left()
            if self._pool.sleep.is_on:
                await self._wait()
            elif self._member.away:
                await self._stay_away()
            elif self._member.state is EngineState.EJECTED:
                await come_back(self._context, self._pool, self._member, self._receiver)
            elif not (self._member.is_up and await self._tried_to_follow()):
                await self._wait()

    async def _stay_away(self) -> None:
        """One that came back from a death when its time was over gives the trainer its memory."""
        member = self._member
        if member.is_up and len(member.engine.asleep) < len(Tag):
            await self._pool.lending.put_to_sleep(member, self._context.stall_timeout_s)
        await self._wait()

    async def follow(self) -> None:
        """One update to the newest version, reported. Raises WeightError, EngineError."""
        report = await self._pool.update(self._member, self._receiver, self._mode)
        if report is not None:
            self._context.report(
                "swap",
                {
                    "version": str(report.version),
                    "flip_s": report.flip_s,
                    "prefill_s": report.prefill_s,
                    "recomputed_tokens": report.recomputed_tokens,
                    "interrupted": report.interrupted,
                    **({"engine": self._member.index} if len(self._pool.members) > 1 else {}),
                },
            )

    def _has_to_take(self) -> bool:
        """Raises NotThereYet where there is something, and it cannot be taken now."""
        if not self._is_behind():
            return False
        self._receiver.offer()
        return True

    def _is_behind(self) -> bool:
        latest, version = self._receiver.latest(), self._member.version
        if self._member.engine.asleep:
            return True
        return latest is not None and version is not None and latest > version

    async def _tried_to_follow(self) -> bool:
        """False if it has the newest version that is there."""
        try:
            if not self._has_to_take():
                self._member.misses_version = False
                return False
            await self.follow()
        except NotThereYet:
            if not self._member.misses_version:
                self._member.misses_version = True
                self._pool.changed.notify()  # the engine watch looks at it
            return False
        except (VersionHeld, WaitTimeout) as held:  # by an evaluation, as a rule: it is no fault of the weights
            self._context.report("waiting", {"role": NAME, "message": self._pool.said_of(self._member, str(held))})
        except StoreError:
            raise  # of the report
        except Exception as error:  # whatever taking them raises, no memory for a second copy included
            self._pool.look()
            if not self._member.is_up:
                return True  # it died, which is told already
            self._member.failed_swaps += 1
            told = words_of_attempt(error, f"a swap of {self._member.name}")
            self._context.report(
                "update_failed", {"version": self._newest(), "message": self._pool.said_of(self._member, told)}
            )
            self._pool.changed.notify()
            then = after_failure(SWAP, self._member.failed_swaps)
            await self._context.runtime.clock.sleep(then.pause_s)
            if then.measure is Measure.RESTART and self._member.revive is not None:
                self._build_anew(told)
        return True

    def _newest(self) -> str:
        try:
            return str(self._receiver.latest())
        except WeightError as error:
            return f"unknown: {error}"

    def _build_anew(self, why: str) -> None:
        """The engine could not take it time and again: another in its place may. What it has in flight goes on
        elsewhere, or waits. If that fails as well, it is tried for as long as the engine watch lets it."""
        member = self._member
        load = member.engine.stats()
        others = any(other.lives for other in self._pool.members if other is not member)
        # Else it is the only one, and at work: it goes on.
        if others or member.engine.rests or not (load.running or load.waiting):
            self._pool.lose(member, EngineError(f"it could not take the newest weights: {why}"))
            self._pool.changed.notify()

    async def _wait(self) -> None:
        context = self._context
        try:
            await self._pool.changed.wait(context.runtime.clock, context.stall_timeout_s, "a new version")
        except WaitTimeout as stall:
            context.report("waiting", {"role": NAME, "message": stall.so_far})


async def taken_up(context: RoleContext, pool: EnginePool, receiver: WeightReceiver) -> None:
    """Until an engine serves the newest version; how long, the engine watch decides."""
    while (latest := receiver.latest()) is not None and pool.version.number < latest.number:
        with suppress(WaitTimeout):
            await pool.changed.wait(context.runtime.clock, context.stall_timeout_s, "the last version")
