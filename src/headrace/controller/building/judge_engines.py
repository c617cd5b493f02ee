"""The engines of the judges: served, and asked."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from headrace.config.reward import JudgeConfig
from headrace.controller.planning.judges import own_judges
from headrace.controller.planning.plan import Plan
from headrace.controller.recorder import Recorder
from headrace.engines.embedded.cache_plan import context_limit
from headrace.engines.pool import EnginePool
from headrace.models.loading import load_tokenizer, read_generation_stops, read_model_config
from headrace.rewards.judge import Ask, JudgeModel
from headrace.roles.context import RoleContext
from headrace.roles.engine_return import EngineReturnRole
from headrace.runtime.patience import StandStill
from headrace.runtime.protocol import Clock, Services, WaitTimeout
from headrace.weights.plane import WeightReceiver

_STOPPING_S = 25.0
"""A server that is launched is asked to end, and ended when it has not after 10 s."""

logger = logging.getLogger(__name__)


def asker(plan: Plan, policy: EnginePool, judges: Mapping[str, EnginePool], services: Services) -> Ask:
    """What answers the questions of all judges of `plan`. `judges`: see `load_judges`. `services`: for long
    questions."""
    seed = plan.config.seed
    models: dict[str | None, JudgeModel] = {
        None: JudgeModel(
            policy,
            plan.tokenizer,
            stop_token_ids=plan.stop_token_ids,
            max_context=plan.max_context,
            seed=seed,
            services=services,
        )
    }
    for own in own_judges(plan.config.rewards):
        tokenizer = load_tokenizer(own.path)
        models[own.path] = JudgeModel(
            judges[own.path],
            tokenizer,
            stop_token_ids=read_generation_stops(own.path, tokenizer),
            max_context=context_limit(read_model_config(own.path), own.engine),
            seed=seed,
            services=services,
        )

    async def ask(config: JudgeConfig, values: Mapping[str, str], still: StandStill) -> str:
        return await models[config.model].answer(config, values, still)

    return ask


class LateAsk:
    """An `Ask` of judges that are loaded only after those who ask them have begun."""

    def __init__(self) -> None:
        self.answers: Ask | None = None
        """See `asker`; set before anything is asked."""

    async def __call__(self, config: JudgeConfig, values: Mapping[str, str], still: StandStill) -> str:
        if self.answers is None:
            raise RuntimeError("a judge was asked before the judges were loaded")
        return await self.answers(config, values, still)


def returns_of(judges: Sequence[EnginePool], context: RoleContext, recorder: Recorder) -> list[EngineReturnRole]:
    """Who brings back the judges' engines. What becomes of them is recorded, and the run's roles look."""
    for pool in judges:
        pool.events.tell_to(recorder.event)
        pool.changed.listen(context.flow.changed.notify)
    return [EngineReturnRole(context, pool, member) for pool in judges for member in pool.members]


@asynccontextmanager
async def serving(
    engines: Mapping[str, EnginePool], clock: Clock, receiver: WeightReceiver | None = None
) -> AsyncGenerator[None]:
    """The engines, started one after another, and stopped at the end. `receiver`: see `EnginePool.start`."""
    async with AsyncExitStack() as stack:
        for engine in engines.values():
            await engine.start(receiver=receiver)
            stack.push_async_callback(stop_engine, engine, clock)
        yield


async def stop_engine(engine: EnginePool, clock: Clock) -> None:
    """With a deadline: an engine that shares its thread with a call that never returns cannot be told."""
    try:
        await clock.wait_for(engine.stop(), _STOPPING_S, "the engine to stop")
    except WaitTimeout as late:
        logger.warning("%s", late)
