"""Lends the trainer's devices to engines while it waits for its batch, and has them back when the batch is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.engines.member import summed
from headrace.engines.pool import EnginePool
from headrace.engines.protocol import EngineStats
from headrace.observe import spent
from headrace.roles.actors import actor
from headrace.roles.context import RoleContext
from headrace.roles.lending_rule import LendingRule, Lent
from headrace.roles.turns import Sleeper
from headrace.runtime.together import together

NAME = "lending"
TAKE_BACK_S = 60.0
"""In which a lent engine has to sleep; one that does not is lost."""
ON_THE_WAY_S = 30.0
"""The most for which groups are held back for engines that are to serve."""
_WAIT = f"{actor.NAME}: {spent.ROWS}"


@dataclass(slots=True)
class _Period:
    """In which the devices are lent."""

    began: float
    batch: int
    is_first: bool = False
    """The engines served already: nothing is known of how long they take to begin."""
    served_at: float | None = None
    """When the first of them served."""
    before: tuple[EngineStats, EngineStats] | None = None
    """Of all engines, and of the lent ones, at that moment."""


class Lending:
    """See `Turns`. It begins lent: the trainer has nothing to do yet. While it is lent those that train sleep, and have
    a batch's rows once it is sealed."""

    def __init__(
        self, context: RoleContext, pool: EnginePool, models: Sequence[Sleeper], rule: LendingRule, *, groups: int
    ) -> None:
        """`models` in training, which sleep. `groups`: so many are begun for a batch."""
        self._context = context
        self._pool = pool
        self._models = tuple(models)
        self._rule = rule
        self._groups = groups
        self._changing = asyncio.Lock()
        self._began = context.runtime.clock.now()
        self._waited_s = 0.0
        """By the trainer for rows, when it had done with its last batch."""
        self._was_lent = False
        """Since then."""
        self._is_due = True
        """To be lent, as far as is known of the last batches."""
        self._limit: asyncio.Task[None] | None = None
        """Of how long groups are held back."""
        self._period: _Period | None = _Period(self._began, context.flow.batch, is_first=True)
        """None while nothing is lent."""
        context.activity.lends(lent=True)
        pool.changed.listen(self._look)
        self._look()

    @property
    def holds_rows(self) -> bool:
        """See `Turns.holds_rows`."""
        return self._period is not None

    async def of_batch(self) -> None:
        """See `Turns.of_batch`."""
        flow = self._context.flow
        while self._period is not None and not (flow.is_sealed or flow.is_finished):
            await self._context.changed(NAME, "the batch to be whole")
        await self.train()

    async def train(self, until: Callable[[], bool] = lambda: False) -> bool:
        """See `Turns.train`: no evaluation is on what is lent, so it is never False. Raises WorkerLost, StoreError."""
        async with self._changing:
            if self._period is not None:
                await self._have_back(self._period)
        return True

    def look(self) -> None:
        """See `Turns.look`."""
        self._pool.changed.notify()

    def trained(self) -> None:
        """See `Turns.trained`. What is to be lent again has its part of the groups that begin with the new version."""
        waited = self._context.waits.totals().get(_WAIT, 0.0)
        if not self._was_lent:
            self._rule.waited(waited - self._waited_s)
        self._waited_s, self._was_lent = waited, False
        flow, pool = self._context.flow, self._pool
        own, lent = sum(member.lives for member in pool.own), len(pool.lent)
        self._is_due = not flow.is_finished and (self._rule.lends() or not own)
        if self._is_due and not flow.is_sealed and self._limit is None:
            pool.lending.hold(others=self._groups - self._groups * lent // (max(own, 1) + lent))
            self._limit = self._context.runtime.spawn(self._hold_no_longer(), "groups that are held back")

    async def generate(self) -> None:
        """See `Turns.generate`. Raises WorkerLost."""
        async with self._changing:
            flow = self._context.flow
            if self._period is not None or flow.is_finished:
                return
            if self._is_due and not flow.is_sealed:
                await self._lend()
            else:
                await self._end_hold()

    async def _lend(self) -> None:
        context, pool = self._context, self._pool
        # First, for if one of the models is lost meanwhile, some sleep, and `train` is to wake them all.
        self._period = _Period(context.runtime.clock.now(), context.flow.batch)
        with context.activity.training(spent.CHANGES):
            await together(model.sleep() for model in self._models)
        context.activity.lends(lent=True)
        pool.lending.lend()

    async def _hold_no_longer(self) -> None:
        """Others could have made by then what lending gives."""
        await self._context.runtime.clock.sleep(min(self._rule.gives_s, ON_THE_WAY_S))
        self._pool.lending.hold_no_longer()

    async def _end_hold(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            await asyncio.gather(self._limit, return_exceptions=True)
            self._limit = None
            self._pool.lending.hold_no_longer()

    async def _have_back(self, period: _Period) -> None:
        context, pool, clock = self._context, self._pool, self._context.runtime.clock
        until = clock.now()
        await self._end_hold()
        with context.activity.training(spent.CHANGES):
            await pool.lending.take_back(TAKE_BACK_S)
            context.activity.lends(lent=False)
            await together(model.wake() for model in self._models)
        self._period, self._was_lent = None, True
        tokens, share, again = self._made(period)
        began = period.began if period.is_first else period.served_at
        lent = Lent(
            seconds=until - period.began,
            begin_s=None if period.is_first or began is None else began - period.began,
            share=share,
            back_s=clock.now() - until,
            again_s=self._again_s(again),
        )
        self._rule.lent(lent)
        context.report(
            "lent",
            {
                "batch": period.batch,
                "from": round(period.began - self._began, 6),
                "until": round(until - self._began, 6),
                "begin_s": None if lent.begin_s is None else round(lent.begin_s, 6),
                "back_s": round(lent.back_s, 6),
                "tokens": tokens,
                "share": share,
                "sent_away_tokens": again,
            },
        )

    def _made(self, period: _Period) -> tuple[int, float | None, int]:
        """Tokens that the lent engines sampled, their share of all, and those of what they sent away."""
        if period.before is None:
            return 0, None, 0
        (all_then, lent_then), (all_now, lent_now) = period.before, self._stats()
        tokens = lent_now.generated_tokens - lent_then.generated_tokens
        all_tokens = all_now.generated_tokens - all_then.generated_tokens
        again = lent_now.sent_away_tokens - lent_then.sent_away_tokens
        return tokens, tokens / all_tokens if all_tokens else None, again

    def _again_s(self, tokens: int) -> float:
        """Seconds that each of the other engines computes so many tokens more, which they share."""
        own = [member for member in self._pool.own if member.lives]
        if not tokens or not own:
            return 0.0
        stats = summed([member.stats() for member in own])
        computed = stats.prefilled_tokens + stats.generated_tokens
        return tokens * stats.busy_s / computed / len(own) if computed else 0.0

    def _stats(self) -> tuple[EngineStats, EngineStats]:
        return self._pool.stats(), summed([member.stats() for member in self._pool.lent])

    def _look(self) -> None:
        """Notice when one of them serves."""
        period = self._period
        if period is not None and period.served_at is None and any(member.serves for member in self._pool.lent):
            period.served_at, period.before = self._context.runtime.clock.now(), self._stats()
