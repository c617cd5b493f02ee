"""A rollout worker: plays groups with the user's code, scores them, journals them, and keeps their columns.

It imports neither torch nor transformers, unless the user's code does, or its tokenizer is Python alone.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from headrace.config.evaluation import HeldOut
from headrace.config.reward import JudgeConfig, RewardConfig
from headrace.engines.pool import EnginePool, Place
from headrace.experience.columns import SAMPLE_COLUMNS, group_of
from headrace.experience.header import GroupHeader, header_of
from headrace.experience.records.codec import encode_group
from headrace.experience.records.group_journal import GroupJournal
from headrace.experience.sample import Group, SampleStatus
from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.fast_tokenizer import FastTokenizer
from headrace.experience.text.tokens import TextCodec
from headrace.rewards.judge import JudgeModel
from headrace.rewards.reward_pool import RewardPool, worker_count
from headrace.roles.workers.engine_clients import EngineClients
from headrace.roles.workers.rollout_types import ROLLOUT_TYPES, Assignment, ModelSpec, Played, RolloutSpec
from headrace.rollout.assembly import Reading, episode_runner, policy_settings
from headrace.rollout.episodes import EpisodeRunner
from headrace.rollout.filters import drop_reason, load_filters
from headrace.rollout.workflow import load_workflow
from headrace.runtime.off_loop import LANE
from headrace.runtime.patience import StandStill
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Host
from headrace.store import JournalWriter
from headrace.weights.version import Lineage, Version

T = TypeVar("T")

BEAT_S = 20.0
"""A group that is played says at least so often that it is."""
_TRAINING = ""


class RolloutWorker:
    """See `RolloutSpec`. Leaving a stream of `play` or `answer` ends the episodes."""

    kind: ClassVar[str] = "rollout"
    types: ClassVar[WireTypes] = ROLLOUT_TYPES

    def __init__(self, spec: RolloutSpec, host: Host) -> None:
        """Loads the user's code. Raises ConfigError."""
        self._spec = spec
        self._host = host
        self._config = spec.config
        self._workflow = load_workflow(spec.config.rollout)
        self._filters = load_filters(spec.config.filters)
        self._tokenizer = _tokenizer(spec.policy)
        template = spec.config.data.template
        self._template = ChatTemplate(self._tokenizer, template.kwargs, template.system)
        self._open = AsyncExitStack()
        self._runners: dict[str, EpisodeRunner] = {}
        """By the held-out set; of training by the empty name."""
        self._pools: list[RewardPool] = []
        self._told: Counter[str] = Counter()
        """Calls to rewards that were told of."""
        self._journal: GroupJournal | None = None
        self._line = Lineage(spec.branch, spec.last_kept)
        self._engines: EnginePool | None = None
        """Of the policy."""

    async def begin(self, writer: int) -> None:
        """Open the journal as this writer, start the processes that score, and listen to the engines. Raises
        ConfigError."""
        spec, config, clock = self._spec, self._config, self._host.clock
        journal = JournalWriter(Path(spec.journal), writer)
        self._open.callback(journal.close)
        self._journal = GroupJournal(journal, self._host, self._host.refs)
        engines = await self._clients(spec.policy, self._line)
        self._engines = engines
        models: dict[str | None, JudgeModel] = {None: await self._judge(spec.policy, engines, self._tokenizer)}
        for path, judge in spec.judges.items():
            models[path] = await self._judge(judge, await self._clients(judge, None), _tokenizer(judge))

        async def ask(judge: JudgeConfig, values: Mapping[str, str], still: StandStill) -> str:
            return await models[judge.model].answer(judge, values, still)

        rewards: list[tuple[RewardConfig, RewardPool]] = []
        for reward in config.rewards:
            if all(reward != known for known, _ in rewards):
                share = reward.model_copy(update={"workers": math.ceil(worker_count(reward) / spec.workers)})
                pool = RewardPool(share, clock=clock, log_path=Path(spec.reward_log), ask=ask)
                self._open.push_async_callback(pool.close)
                await pool.start()
                rewards.append((reward, pool))
                self._pools.append(pool)
        sets: list[tuple[str, HeldOut | None, RewardConfig]] = [(_TRAINING, None, config.reward)]
        sets += [(each.name, each, each.reward if each.own_reward else config.reward) for each in config.held_out]
        for name, held_out, reward in sets:
            longest = spec.longest[name]
            text = TextCodec(self._tokenizer, self._template)
            reading = Reading(text, spec.policy.stop_token_ids, spec.policy.max_context, longest)
            policy = policy_settings(config, reading, engines, self._host, held_out)
            pool = next(pool for known, pool in rewards if known == reward)
            self._runners[name] = episode_runner(config, self._workflow, policy, pool, held_out)

    async def go_back(self, begun: Version, last_kept: Mapping[int, int]) -> None:
        """The run goes on from `begun`: what is in flight, too. See `Lineage.go_back`."""
        self._line.go_back(begun, last_kept)
        if self._engines is not None:
            self._engines.changed.notify()

    async def play(self, given: Assignment) -> AsyncGenerator[Played | None, None]:
        """Play a group: None now and then, and once it is scored and durable, what came of it. Raises NotServed,
        DiskFull, StoreError, CodecError."""
        async with aclosing(self._beating(self._played(given), f"group {given.key}")) as items:
            async for item in items:
                yield item

    async def answer(self, given: Assignment, held_out: str) -> AsyncGenerator[bytes | None, None]:
        """Play a prompt of a held-out set: None now and then, then the group, encoded. Raises NotServed, CodecError."""
        async with aclosing(self._beating(self._answered(given, held_out), f"{held_out} {given.key}")) as items:
            async for item in items:
                yield item

    async def judge(self, header: GroupHeader, samples: Sequence[Ref], batch: int) -> tuple[str | None, list[str]]:
        """Why the finished group is dropped, None if it is kept; and what filters failed with. Raises RefLost."""
        columns = [await self._host.get(ref) for ref in samples]
        whole = cache(lambda: group_of(_Loaded(samples, columns), header, samples))
        faults: list[str] = []
        return drop_reason(self._filters, header, whole, batch, faults.append), faults

    async def close(self) -> None:
        """Its end."""
        await self._open.aclose()

    async def _played(self, given: Assignment) -> Played:
        group = await self._run(given, _TRAINING)
        failed = None
        if self._spec.keeps_failed:
            those = tuple(sample for sample in group.samples if sample.status is SampleStatus.FAILED)
            if those:
                failed = await self._host.compute(LANE, encode_group, replace(group, samples=those))
        if len(group.trainable) < self._spec.min_samples:
            return Played(header_of(group), (), None, failed, self._reward_calls())
        assert self._journal is not None
        finished, receipt = await self._journal.write(group)
        return Played(finished.header, finished.refs, receipt, failed, self._reward_calls())

    async def _answered(self, given: Assignment, held_out: str) -> bytes:
        return await self._host.compute(LANE, encode_group, await self._run(given, held_out))

    async def _run(self, given: Assignment, name: str) -> Group:
        place = Place(given.version, given.home, given.only)
        return await self._runners[name].run_group(
            given.key, given.prompt, given.version, given.deadline, given.issue, place
        )

    async def _beating(self, work: Awaitable[T], what: str) -> AsyncGenerator[T | None, None]:
        async def run() -> T:
            return await work

        task = self._host.spawn(run(), what)
        try:
            while not task.done():
                try:
                    await self._host.clock.wait_for(asyncio.shield(task), BEAT_S, what)
                except WaitTimeout:
                    if not task.done():
                        yield None
            yield task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _reward_calls(self) -> dict[str, int]:
        now: Counter[str] = Counter()
        for pool in self._pools:
            now.update(pool.times.counts)
        new = now - self._told
        self._told = now
        return dict(new)

    async def _clients(self, model: ModelSpec, line: Lineage | None) -> EnginePool:
        engine = self._config.engine
        clients = EngineClients(
            model.engines, self._host, line=line, return_deadline_s=engine.return_deadline_s, spread=engine.spread
        )
        self._open.push_async_callback(clients.close)
        await clients.open(wait=line is not None)
        return clients.pool

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


class _Loaded:
    """`Refs` of columns that were read before."""

    def __init__(self, refs: Sequence[Ref], columns: Sequence[Mapping[str, Any]]) -> None:
        self._columns = dict(zip(refs, columns, strict=True))

    def put(self, columns: Mapping[str, Any]) -> Ref:
        raise NotImplementedError

    def get(self, ref: Ref, names: Any = SAMPLE_COLUMNS) -> Mapping[str, Any]:
        """See `Refs.get`."""
        if ref not in self._columns:
            raise RefLost(ref)
        return self._columns[ref]

    def free(self, ref: Ref) -> None:
        """They go with this object."""


def _tokenizer(model: ModelSpec) -> Any:
    if model.tokenizer is not None:
        return FastTokenizer(model.tokenizer)
    from headrace.models.loading import load_tokenizer

    return load_tokenizer(model.path)
