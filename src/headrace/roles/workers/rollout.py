"""A rollout worker: plays groups with the user's code, scores them, journals them, and keeps their columns.

It imports neither torch nor transformers, unless the user's code does, or its tokenizer is Python alone.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any, ClassVar

from headrace.config.evaluation import HeldOut
from headrace.config.reward import JudgeConfig, RewardConfig
from headrace.engines.pool import EnginePool
from headrace.experience.records.group_journal import GroupJournal
from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.fast_tokenizer import FastTokenizer
from headrace.experience.text.tokens import TextCodec
from headrace.rewards.judge import JudgeModel
from headrace.rewards.reward_pool import RewardPool, worker_count
from headrace.roles.workers.agent_sessions import with_gateway
from headrace.roles.workers.engine_clients import EngineClients
from headrace.roles.workers.group_player import BEAT_S, TRAINING, GroupPlayer
from headrace.roles.workers.rollout_types import ROLLOUT_TYPES, ModelSpec, RolloutSpec
from headrace.rollout.assembly import Reading, episode_runner, policy_settings
from headrace.rollout.filters import load_filters
from headrace.rollout.relayed_tasks import RelayedTasks, TaskNews
from headrace.rollout.rollout_function import RolloutFunctions
from headrace.rollout.workflow import load_workflow, outside_player
from headrace.runtime.patience import StandStill
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Handle, Host
from headrace.store import JournalWriter
from headrace.store.partials import Partials
from headrace.weights.version import Lineage, Version


class RolloutWorker(GroupPlayer):
    """See `RolloutSpec`."""

    kind: ClassVar[str] = "rollout"
    types: ClassVar[WireTypes] = ROLLOUT_TYPES

    def __init__(self, spec: RolloutSpec, host: Host) -> None:
        """Loads the user's code. Raises ConfigError."""
        workflow = load_workflow(spec.config.rollout)
        filters = load_filters(spec.config.filters, has_function=spec.config.rollout.function is not None)
        super().__init__(host, filters, min_samples=spec.min_samples, keeps_failed=spec.keeps_failed)
        self._spec = spec
        self._config = spec.config
        self._workflow = workflow
        outside = outside_player(self._workflow)
        self._tasks = RelayedTasks() if outside is None else outside.relayed()
        """For agents outside."""
        self._functions = RolloutFunctions.of(spec.config)
        self._tokenizer = _tokenizer(spec.policy)
        template = spec.config.data.template
        self._template = ChatTemplate(self._tokenizer, template.kwargs, template.system)
        self._open = AsyncExitStack()
        self._line = Lineage(spec.branch, spec.last_kept)
        self._policy: EngineClients | None = None
        """The policy's engines."""

    async def begin(self, writer: int, tokens: Mapping[str, str]) -> None:
        """Open the journal as this writer, start the processes that score, and listen to the engines. `tokens`: see
        `RewardPool`. Raises ConfigError."""
        spec, config, clock = self._spec, self._config, self._host.clock
        journal = JournalWriter(Path(spec.journal), writer)
        self._open.callback(journal.close)
        self._journal = GroupJournal(journal, self._host, self._host.refs)
        self._policy = await self._clients(spec.policy, self._line)
        engines = self._policy.pool
        models: dict[str | None, JudgeModel] = {None: await self._judge(spec.policy, engines, self._tokenizer)}
        for path, judge in spec.judges.items():
            models[path] = await self._judge(judge, (await self._clients(judge, None)).pool, _tokenizer(judge))

        async def ask(judge: JudgeConfig, values: Mapping[str, str], still: StandStill) -> str:
            return await models[judge.model].answer(judge, values, still)

        rewards: list[tuple[RewardConfig, RewardPool]] = []
        for reward in config.rewards:
            if all(reward != known for known, _ in rewards):
                share = reward.model_copy(update={"workers": math.ceil(worker_count(reward) / spec.workers)})
                pool = RewardPool(share, clock=clock, log_path=Path(spec.reward_log), ask=ask, tokens=tokens)
                self._open.push_async_callback(pool.close)
                await pool.start()
                rewards.append((reward, pool))
                self._scored_by.append(pool)
        gateway = with_gateway(self._workflow, config, self._template, self._host, self._host.rank)
        workflow = await self._open.enter_async_context(gateway)
        sets: list[tuple[str, HeldOut | None, RewardConfig]] = [(TRAINING, None, config.reward)]
        sets += [(each.name, each, each.reward if each.own_reward else config.reward) for each in config.held_out]
        for name, held_out, reward in sets:
            longest = spec.longest[name]
            text = TextCodec(self._tokenizer, self._template)
            reading = Reading(text, spec.policy.stop_token_ids, spec.policy.max_context, longest)
            policy = policy_settings(config, reading, engines, self._host, held_out)
            pool = next(pool for known, pool in rewards if known == reward)
            self._runners[name] = episode_runner(
                config, workflow, self._functions, policy, pool, held_out, Partials(Path(spec.partials))
            )

    async def go_back(self, begun: Version, last_kept: Mapping[int, int]) -> None:
        """The run goes on from `begun`: what is in flight, too. See `Lineage.go_back`."""
        self._line.go_back(begun, last_kept)
        if self._policy is not None:
            self._policy.pool.changed.notify()

    async def engines_changed(self, handles: Sequence[Handle], dropped: Sequence[int]) -> None:
        """The policy's engines have these handles, and those at the places `dropped` serve nothing more."""
        clients = self._policy
        assert clients is not None
        for handle in handles[len(clients.pool.members) :]:
            clients.add(handle)
        for place in dropped:
            clients.drop(place)

    async def tasks(self) -> AsyncGenerator[list[TaskNews], None]:
        """What it has for agents outside, as it comes; see `RelayedTasks`. For one who listens."""
        async with aclosing(self._tasks.news(self._host.clock, BEAT_S)) as items:
            async for news in items:
                yield news

    async def task_stands(self, id: str, stands: bool) -> None:
        """See `RelayedTasks.stands`."""
        self._tasks.stands(id, stands=stands)

    async def task_ended(self, id: str, reward: float | None, failure: str | None, nobody_s: float | None) -> bool:
        """See `RelayedTasks.end`."""
        return self._tasks.end(id, reward, failure, nobody_s)

    async def close(self) -> None:
        """Its end."""
        await self._open.aclose()

    async def _clients(self, model: ModelSpec, line: Lineage | None) -> EngineClients:
        engine = self._config.engine
        clients = EngineClients(
            model.engines, self._host, line=line, return_deadline_s=engine.return_deadline_s, spread=engine.spread
        )
        self._open.push_async_callback(clients.close)
        await clients.open(wait=line is not None)
        return clients

    async def _judge(self, model: ModelSpec, engines: EnginePool, tokenizer: Any) -> JudgeModel:
        return JudgeModel(
            engines,
            tokenizer,
            stop_token_ids=model.stop_token_ids,
            max_context=model.max_context,
            seed=self._config.seed,
            services=self._host,
            asker=self._host.name,
        )


def _tokenizer(model: ModelSpec) -> Any:
    if model.tokenizer is not None:
        return FastTokenizer(model.tokenizer)
    from headrace.models.loading import load_tokenizer

    return load_tokenizer(model.path)
