"""All engines of a pool asleep, while somebody else computes on their devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.engines.member import Member
from headrace.engines.pool_state import EngineState
from headrace.engines.protocol import EngineError, Tag
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.together import together

if TYPE_CHECKING:
    from headrace.engines.pool import EnginePool


class PoolSleep:
    def __init__(self, pool: EnginePool) -> None:
        self.is_on = False
        """The engines sleep, or are to: nobody has one take weights, or brings one back."""
        self._pool = pool

    async def lie_down(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Put all engines to sleep, once no evaluation holds them and none is at taking weights; but not if `until()`
        holds before (looked at with each change): then it is False, and they are to `rise`. What was asked of them
        waits. One that cannot sleep is lost, as one that died. Raises WaitTimeout; then the same may be asked again."""
        pool = self._pool
        self.is_on = True
        await pool.changed.wait_until(
            lambda: until() or not (self._pins or self._moving), pool.clock, seconds, self._awaited
        )
        if self._pins or self._moving:
            return False
        await together(self._put_to_sleep(member) for member in pool.members if member.is_up)
        pool.recount()
        return True

    def rise(self) -> None:
        """The engines may wake: who follows the weights has each take the newest version."""
        self.is_on = False
        self._pool.recount()
        self._pool.changed.notify()

    @property
    def _pins(self) -> int:
        return sum(member.pins for member in self._pool.members)

    @property
    def _moving(self) -> list[Member]:
        return [each for each in self._pool.members if each.state in (EngineState.STARTING, EngineState.SWAPPING)]

    def _awaited(self) -> str:
        held = f"{self._pins} pins on version {self._pool.version} to be released" if self._pins else ""
        moving = f"{', '.join(each.name for each in self._moving)} to take weights" if self._moving else ""
        return f"{' and '.join(word for word in (held, moving) if word)}, before the engines sleep"

    async def _put_to_sleep(self, member: Member) -> None:
        try:
            await member.engine.sleep(tuple(Tag))
        except (EngineError, WaitTimeout) as error:
            if member.is_up and member.engine.failure is None:
                await member.engine.stop()
                self._pool.lose(member, error)
            self._pool.look()
