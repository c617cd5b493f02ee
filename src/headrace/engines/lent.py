"""Engines on the trainer's devices, lent to generation while it waits for its batch, and taken back when it has it.

Invariants: nobody has an engine that is taken back take weights, or brings it back from a death; what was asked of it
goes on elsewhere, with the tokens that there are; taking them back ends by a deadline, whatever they are at.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from headrace.engines.member import Member
from headrace.engines.pool_state import EngineState
from headrace.engines.protocol import EngineError, Tag
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.together import together

if TYPE_CHECKING:
    from headrace.engines.pool import EnginePool

Kill = Callable[[int, str], Awaitable[None]]
"""Ends what computes as the engine of this index, at once, for a reason."""
_MOVES = (EngineState.STARTING, EngineState.SWAPPING)
_LONG_S = 3600.0
"""Of one move; the deadline of putting an engine to sleep is shorter."""


class LentEngines:
    """Of a pool. They begin lent."""

    def __init__(self, pool: EnginePool, kill: Kill | None) -> None:
        """`kill`: None where what computes cannot be ended, being in the run's own process."""
        self._pool = pool
        self._kill = kill
        self._left: int | None = None
        """Groups that may begin on others yet, until these serve; None: any number."""

    def hold(self, others: int) -> None:
        """They are about to be lent. Until one serves, at most so many groups begin on other engines: what is left is
        for these."""
        self._left = others

    def lend(self) -> None:
        """They are to serve: who follows the weights has each take the newest version."""
        for member in self._pool.lent:
            member.away = False
        self._pool.changed.notify()

    def hold_no_longer(self) -> None:
        """They take too long, or do not come: any number of groups may begin on other engines."""
        self._left = None
        self._pool.changed.notify()

    @property
    def holds_back(self) -> bool:
        """Whether no group may begin, as what is left is for engines that are on their way."""
        if self._left is None or self._left > 0:
            return False
        members = self._pool.lent
        coming = any(member.is_up and not member.failed_swaps for member in members)
        if not coming or any(member.serves for member in members):
            self._left = None
        return self._left is not None

    def began(self) -> None:
        """A group has."""
        if self._left is not None:
            self._left -= 1

    async def take_back(self, seconds: float) -> None:
        """Have all sleep. One that does not within so many seconds is lost, as one that died."""
        for member in self._pool.lent:
            member.away = True
        self._left = None
        self._pool.changed.notify()
        await together(self.put_to_sleep(member, seconds) for member in self._pool.lent)
        self._pool.look()
        self._pool.changed.notify()

    async def put_to_sleep(self, member: Member, seconds: float) -> None:
        """One of them, which is away. See `take_back`."""
        pool, asked = self._pool, f"{member.name} to be given back to the trainer"
        try:
            await pool.clock.wait_for(self._fall_asleep(member), seconds, asked)
        except (EngineError, WaitTimeout) as error:
            if self._kill is not None and isinstance(error, WaitTimeout):
                await self._kill(member.index, f"it was not given back to the trainer within {seconds:g} s")
            pool.look()
            if member.is_up:
                pool.lose(member, error)

    async def _fall_asleep(self, member: Member) -> None:
        """It may be about to wake: then it is put to sleep again behind that. One that is being made anew is so the
        next time that it is lent."""
        pool = self._pool
        while True:
            if self._kill is not None and member.state is EngineState.STARTING:
                await self._kill(member.index, "the trainer has its device again")
            if member.is_up and member.engine.failure is None:
                await member.engine.sleep(tuple(Tag), sends_away=True)
            await pool.changed.wait_until(
                lambda: member.state not in _MOVES, pool.clock, _LONG_S, lambda: f"{member.name} to take weights"
            )
            pool.look()
            if not member.is_up or len(member.engine.asleep) == len(Tag):
                return
