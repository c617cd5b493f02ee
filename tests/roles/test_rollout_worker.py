"""A rollout worker in a process of its own, asking an engine of this one."""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import replace
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from controller_jobs import make_job
from rollout_helpers import EOS, ScriptedEngine, char_tokenizer, chunk, ids
from rollout_worker_code import SOURCE

from headrace.config import EngineConfig, load_config
from headrace.config.reward import RewardConfig
from headrace.config.train import TrainConfig
from headrace.engines.protocol import EngineStats, GenerateRequest
from headrace.experience.columns import COLUMN_TYPES, group_of
from headrace.experience.prompts.dataset import Prompt
from headrace.experience.records.codec import decode_group
from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus
from headrace.experience.text.fast_tokenizer import TokenizerSpec
from headrace.roles.workers.engine import EngineSpec, EngineWorker
from headrace.roles.workers.group_player import GroupPlayer
from headrace.roles.workers.rollout import RolloutWorker
from headrace.roles.workers.rollout_types import Assignment, ModelSpec, RolloutSpec
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.process.processes import Processes
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.virtual import VirtualRuntime, run_virtually
from headrace.runtime.workers import Handle, Host, Placement, WorkerError
from headrace.store import JournalWriter, StoreError
from headrace.store.journal import Journal
from headrace.store.media.files import LocalFiles
from headrace.weights.version import INITIAL


class Engine(ScriptedEngine):
    slots = 4
    quiet = None
    rests = False
    asleep = ()

    def stats(self) -> EngineStats:
        return EngineStats(0, 0, 0, 0, 0, 0.0, 0.0)


def spec_of(folder: Path, engines: tuple[Handle, ...]) -> RolloutSpec:
    job = make_job(folder / "job", data__eval=None)
    (folder / "job" / "own.py").write_text(SOURCE)
    (folder / "job" / "reward.py").write_text("def score(response, row):\n    return float(len(response))\n")
    own = {"workflow": f"{folder}/job/own.py:Mine", "filters": (f"{folder}/job/own.py:keep",)}
    config = load_config(TrainConfig, job)
    config = config.model_copy(update={"rollout": config.rollout.model_copy(update=own)})
    tokenizer = TokenizerSpec.of(char_tokenizer())
    journal = folder / "journal"
    journal.mkdir()
    return RolloutSpec(
        config=config,
        policy=ModelSpec("nowhere", tokenizer, (EOS,), 64, engines),
        judges={},
        longest={"": 32},
        branch=0,
        last_kept={},
        journal=str(journal),
        partials=str(folder / "partial"),
        reward_log=str(folder / "reward.log"),
        workers=1,
        min_samples=2,
        keeps_failed=True,
    )


def answers(request: GenerateRequest) -> Any:
    """Longer ones for later episodes."""
    return chunk([*ids("ab" * (1 + int(request.request_id.split("/")[-1].partition(".")[0]))), EOS])


class ScriptedWorker(EngineWorker):
    """An engine that has no model."""

    def _made(self, spec: EngineSpec, host: Host) -> Any:
        return Engine(answers)


async def engines(runtime: InlineRuntime) -> tuple[Handle, ...]:
    spec = EngineSpec("nowhere", "float32", "cpu", EngineConfig())
    return tuple((await runtime.start(ScriptedWorker, [spec], Placement())).handles)


def test_a_group_is_played_scored_journaled_and_judged_without_torch(tmp_path: Path) -> None:
    async def main() -> None:
        runtime = InlineRuntime(apart=Processes("rollouts", logs=tmp_path), types=COLUMN_TYPES, copying=True)
        try:
            spec = spec_of(tmp_path, await engines(runtime))
            workers = await runtime.start(RolloutWorker, [spec], Placement(process=True, threads=1))
            await workers.call("begin", 7, {}, rank=0, what="a worker")
            prompt = Prompt("p", "1+1=", {"prompt": "1+1=", "answer": "2"})
            given = Assignment(GroupKey(0, 3, 0), prompt, INITIAL, 2, 1, 0, ())
            items = [item async for item in workers.stream("play", given, rank=0, what="a group")]
            played = items[-1]
            header = played.header
            assert (header.key, header.issue, header.deadline) == (given.key, 1, 2)
            assert [sample.reward for sample in header.samples] == [2.0, 4.0, 6.0]
            assert sum(played.reward_calls.values()) == 3
            assert played.receipt.place.writer == 7
            assert all(ref.keeper == "rollout/0" for ref in played.refs)
            there = await runtime.compute("lane", group_of, runtime.refs, header, played.refs)
            written = decode_group(Journal(tmp_path / "journal").read(played.receipt.place))
            assert [sample.tokens.tolist() for sample in there.samples] == [
                sample.tokens.tolist() for sample in written.samples
            ]
            metadata = there.samples[0].metadata
            assert metadata["imported"] == []
            assert metadata["pid"] != os.getpid()
            answer = await workers.call("judge", header, played.refs, 0, rank=0, what="filters")
            assert tuple(answer[0]) == (None, [])
            await workers.call("let_go", given.key, 0, rank=0, what="another issue to be let go")
            assert await runtime.get(played.refs[0], ("tokens",))
            await workers.call("let_go", given.key, 1, rank=0, what="a group to be let go")
            for ref in played.refs:
                with pytest.raises(RefLost):
                    await runtime.get(ref)
        finally:
            await runtime.close()

    asyncio.run(main())


def test_a_journal_of_a_writer_that_has_ended_is_read_up_to_its_torn_end(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, 4)
    places = [writer.append((0, number, 0), b"group" * 9, issue=number) for number in range(3)]
    writer.close()
    JournalWriter(tmp_path, 5).append((0, 9, 0), b"other")
    path = Journal(tmp_path).path(1, 4)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    found = list(Journal(tmp_path).written(4))
    assert [(each.key, each.issue, each.place) for each in found] == [
        ((0, number, 0), number, places[number]) for number in range(2)
    ]


@pytest.mark.parametrize("gone_at", ["sync", "open"])
def test_a_segment_that_a_commit_removes_while_the_journal_is_read_is_passed_by(tmp_path: Path, gone_at: str) -> None:
    writer = JournalWriter(tmp_path, 4, segment_bytes=60)  # one record each
    places = [writer.append((0, number, 0), b"group" * 9) for number in range(3)]
    writer.close()
    settled = Journal(tmp_path).path(2, 4)

    class Committing(LocalFiles):
        def sync(self, path: Path) -> None:
            if gone_at == "sync":
                settled.unlink(missing_ok=True)
            super().sync(path)

        def open(self, path: Path) -> BufferedIOBase:
            if gone_at == "open":
                settled.unlink(missing_ok=True)
            return super().open(path)

    assert [each.place for each in Journal(tmp_path, Committing()).written(4)] == [places[0], places[2]]


def test_what_is_known_of_groups_that_left_does_not_grow() -> None:
    """A worker knows of the groups whose columns it keeps, and of no more than as many others."""

    async def main(runtime: VirtualRuntime) -> None:
        player = GroupPlayer(runtime, (), min_samples=1, keeps_failed=False)  # type: ignore[arg-type]
        live: list[tuple[Ref, ...]] = []
        for number in range(200):
            refs = tuple(runtime.put({"tokens": [number]}) for _ in range(3))
            given = Assignment(GroupKey(0, number, 0), Prompt("p", "1", {}), INITIAL, 2, 0, 0, ())
            player._keep(given, refs)
            live.append(refs)
            if len(live) > 10:
                for ref in live.pop(number % 7):
                    runtime.free(ref)
            assert len(player._kept) <= 22
        await player.let_go(GroupKey(0, 199, 0), 0)
        assert runtime.kept == 3 * 9

    run_virtually(main)


def test_a_worker_writes_no_group_whose_samples_are_of_one_episode() -> None:
    """It has no journal: two histories of a sole survivor are fewer than two episodes."""
    key, one = GroupKey(0, 0, 0), np.ones(1)
    left = [Sample(key, 0, index, *[one] * 5, SampleStatus.COMPLETED, 1.0) for index in range(2)]
    failed = Sample(key, 1, 0, *[one] * 5, SampleStatus.FAILED, None, "engine: x")
    alone = Group(key, "p", 0, 2, (*left, failed))

    class Surviving(GroupPlayer):
        async def _run(self, given: Assignment, purpose: Any) -> Group:
            return alone

        def _reward_calls(self) -> dict[str, int]:
            return {}

    async def main(runtime: VirtualRuntime) -> None:
        player = Surviving(runtime, (), min_samples=2, keeps_failed=False)  # type: ignore[arg-type]
        played = await player._played(Assignment(key, Prompt("p", "1", {}), INITIAL, 2, 0, 0, ()))
        assert (played.receipt, tuple(played.refs)) == (None, ())

    run_virtually(main)


def test_a_journal_that_has_a_fault_is_told_as_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder too is on the disk before anything is said of a record."""
    writer, synced = JournalWriter(tmp_path, 4), []
    writer.append((0, 1, 0), b"group")
    monkeypatch.setattr(LocalFiles, "sync", lambda self, path: synced.append(path))
    assert len(Journal(tmp_path).written(4)) == 1
    assert synced == [Journal(tmp_path).path(1, 4), tmp_path]

    def fails(self: LocalFiles, path: Path) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(LocalFiles, "sync", fails)
    with pytest.raises(StoreError, match="input/output error; check the disk"):
        Journal(tmp_path).written(4)


def test_tokens_of_reward_servers_come_with_its_beginning(tmp_path: Path) -> None:
    """Its environment, on another node of a Ray cluster, is not the command's."""

    async def main() -> None:
        runtime = InlineRuntime(apart=Processes("rollouts", logs=tmp_path), types=COLUMN_TYPES)
        try:
            spec = spec_of(tmp_path, await engines(runtime))
            remote = {"url": "http://127.0.0.1:1", "token_env": "HEADRACE_NO_SUCH", "retries": 0}
            reward = RewardConfig.model_validate({"function": "remote", "remote": remote})
            spec = replace(spec, config=spec.config.model_copy(update={"reward": reward}))
            workers = await runtime.start(RolloutWorker, [spec], Placement(process=True, threads=1))
            await workers.call("begin", 1, {"HEADRACE_NO_SUCH": "swordfish"}, rank=0, what="a worker")
        finally:
            await runtime.close()

    asyncio.run(main())


@pytest.mark.parametrize("missing", ["reward.py:score", "own.py:Mine"])
def test_code_that_does_not_load_is_told(tmp_path: Path, missing: str) -> None:
    async def main() -> None:
        runtime = InlineRuntime(apart=Processes("rollouts", logs=tmp_path), types=COLUMN_TYPES)
        try:
            spec = spec_of(tmp_path, await engines(runtime))
            (tmp_path / "job" / missing.partition(":")[0]).unlink()

            async def begin() -> None:
                workers = await runtime.start(RolloutWorker, [spec], Placement(process=True, threads=1))
                await workers.call("begin", 1, {}, rank=0, what="a worker")

            with pytest.raises(WorkerError, match=f"there is no file .*{missing.partition(':')[0]}"):
                await begin()
        finally:
            await runtime.close()

    asyncio.run(main())
