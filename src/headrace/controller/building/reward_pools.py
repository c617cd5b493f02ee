"""The rewards of a run: training's, and those of held-out sets that have their own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace.config.evaluation import HeldOut
from headrace.controller.planning.plan import Plan
from headrace.rewards.judge import Ask
from headrace.rewards.reward_pool import RewardPool, Rewards
from headrace.runtime.protocol import Clock


@dataclass(frozen=True, slots=True)
class RewardPools:
    training: Rewards
    own: Mapping[str, Rewards]
    """By the name of the set."""

    def of(self, held_out: HeldOut) -> Rewards:
        return self.own.get(held_out.name, self.training)


@asynccontextmanager
async def reward_pools(plan: Plan, clock: Clock, ask: Ask, log_path: Path | None = None) -> AsyncGenerator[RewardPools]:
    """Started; all are closed at the end. Sets with one reward share a pool. `log_path`: see `RewardPool`."""
    config = plan.config
    async with AsyncExitStack() as stack:
        pools: list[tuple[object, RewardPool]] = []
        for reward in config.rewards:
            if all(reward != known for known, _ in pools):
                pool = RewardPool(reward, clock=clock, log_path=log_path, ask=ask, given=plan.given)
                stack.push_async_callback(pool.close)
                await pool.start()
                pools.append((reward, pool))
        own = {
            each.name: next(pool for known, pool in pools if known == each.reward)
            for each in config.held_out
            if each.own_reward
        }
        yield RewardPools(pools[0][1], own)
