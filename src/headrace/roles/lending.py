"""Lends the trainer's devices to engines while it waits for its batch, and has them back when the batch is there; a
little earlier, where it is known how long what is missing takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class _Back:
    """The devices are the trainer's again."""

    began: float
    seconds: float
    tokens: int
    """That the lent engines sampled."""
    share: float | None
    again: int
    """Tokens that others compute again."""


@dataclass(slots=True)
class _Period:
    """In which the devices are lent: until the batch is there, also where the trainer has them a little earlier."""

    began: float
    batch: int
    is_first: bool = False
    """The engines served already: nothing is known of how long they take to begin."""
    served_at: float | None = None
    """When the first of them served."""
    before: tuple[EngineStats, EngineStats] | None = None
    """Of all engines, and of the lent ones, at that moment."""
    lacked: dict[int, float] = field(default_factory=dict)
    """By a number of groups, when the batch began to lack no more than these."""
    back: _Back | None = None
    stays: bool = False
    """Lent until the batch is there: that it was not was a fault."""


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
        self._early: asyncio.Task[None] | None = None
        """What is done with the devices before the batch is there; where it has failed, `train` is to tell."""
        self._period: _Period | None = _Period(self._began, context.flow.batch, is_first=True)
        """None while nothing is lent."""
        context.activity.lends(lent=True)
        pool.changed.listen(self._look)
        context.flow.changed.listen(self._look_at_batch)
        self._look()

    @property
    def shares_devices(self) -> bool:
        """See `Turns.shares_devices`."""
        return True

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
        asked = self._context.runtime.clock.now()
        if self._early is not None:
            early, self._early = self._early, None
            with self._context.activity.training(spent.CHANGES):
                await early
        async with self._changing:
            if self._period is not None:
                await self._have_back(self._period, asked)
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
            if self._is_due and not flow.is_sealed and not self._ends():
                await self._lend()
            else:
                await self._end_hold()

    async def _lend(self) -> None:
        context = self._context
        # First, for if one of the models is lost meanwhile, some sleep, and `train` is to wake them all.
        self._period = _Period(context.runtime.clock.now(), context.flow.batch)
        with context.activity.training(spent.CHANGES):
            await self._hand_over()
        self._look_at_batch()

    async def _hand_over(self) -> None:
        await together(model.sleep() for model in self._models)
        self._context.activity.lends(lent=True)
        self._pool.lending.lend()

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

    async def _have_back(self, period: _Period, asked: float) -> None:
        """Somebody `asked` for what is lent."""
        context, flow = self._context, self._context.flow
        if period.back is None:
            with context.activity.training(spent.CHANGES):
                back = await self._take_back(period)
        else:
            back = period.back
        self._period, self._was_lent = None, True
        is_there = flow.is_sealed and flow.batch == period.batch
        began = period.began if period.is_first else period.served_at
        lent = Lent(
            seconds=asked - period.began,
            begin_s=None if period.is_first or began is None else began - period.began,
            share=back.share,
            back_s=back.seconds,
            again_s=self._again_s(back.again),
            early_s=max(asked - back.began, 0.0),
            left_s={missing: asked - since for missing, since in period.lacked.items()} if is_there else {},
        )
        self._rule.lent(lent)
        context.report(
            "lent",
            {
                "batch": period.batch,
                "from": round(period.began - self._began, 6),
                "until": round(back.began - self._began, 6),
                "begin_s": None if lent.begin_s is None else round(lent.begin_s, 6),
                "back_s": round(lent.back_s, 6),
                "early_s": round(lent.early_s, 6),
                "tokens": back.tokens,
                "share": back.share,
                "sent_away_tokens": back.again,
            },
        )

    async def _take_back(self, period: _Period) -> _Back:
        clock = self._context.runtime.clock
        began = clock.now()
        await self._end_hold()
        await self._pool.lending.take_back(TAKE_BACK_S)
        self._context.activity.lends(lent=False)
        await together(model.wake() for model in self._models)
        period.back = _Back(began, clock.now() - began, *self._made(period))
        return period.back

    def _look_at_batch(self) -> None:
        """What is missing of it may be there soon; or nobody is left to make it."""
        period, flow = self._period, self._context.flow
        if period is None or period.batch != flow.batch or flow.is_sealed or flow.is_finished:
            return
        missing = flow.missing_groups
        period.lacked.setdefault(missing, self._context.runtime.clock.now())
        if self._early is not None:
            return
        runtime = self._context.runtime
        if period.back is not None:
            if not any(member.is_up for member in self._pool.own):
                self._early = runtime.spawn(self._lend_again(period), "devices that are lent again")
        elif not period.stays and self._ends():
            self._early = runtime.spawn(self._back_early(period), "devices on their way back")

    def _ends(self) -> bool:
        """Whether others soon have what is missing of the batch."""
        return any(member.lives for member in self._pool.own) and self._rule.ends(self._context.flow.missing_groups)

    async def _back_early(self, period: _Period) -> None:
        async with self._changing:
            if self._period is period and period.back is None:
                await self._take_back(period)
        self._early = None

    async def _lend_again(self, period: _Period) -> None:
        """The engines that were to make the rest are gone."""
        async with self._changing:
            if self._period is period and period.back is not None:
                period.back, period.stays = None, True
                await self._hand_over()
        self._early = None

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
        self._look_at_batch()
