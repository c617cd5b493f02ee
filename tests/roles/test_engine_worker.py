"""The embedded engine as a worker, and `RemoteEngine`, by which it is asked."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from children import child
from engines_helpers import collect, prompt, request, serving, tiny_model
from tensor_bytes import tensor_bytes

from headrace.config import EngineConfig
from headrace.engines.embedded.core import EngineCore
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.protocol import EngineError, RequestError, SwapMode, TokenChunk
from headrace.engines.remote import RemoteEngine
from headrace.roles.workers.engine import EngineSpec, EngineWorker, JudgeEngineWorker
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.peer_of_rank import PeerOfRank
from headrace.runtime.process.processes import Processes
from headrace.runtime.workers import Placement, Workers
from headrace.weights.disk import DiskPublisher
from headrace.weights.in_process import MemoryPublisher
from headrace.weights.version import INITIAL, Version

INLINE = Placement(deadline_s=60)
_copies = [True]
"""Whether messages go to an engine of this process."""
OWN = Placement(process=True, threads=1, deadline_s=60, start_s=120)


@pytest.fixture(params=[True, False], ids=["by messages", "in this process"])
def copies(request: pytest.FixtureRequest) -> Iterator[bool]:
    _copies[0] = request.param
    yield request.param
    _copies[0] = True


def spec(folder: Path, seed: int = 0) -> EngineSpec:
    tiny_model(seed=seed).save_pretrained(folder)
    return EngineSpec(str(folder), "float32", "cpu", EngineConfig(max_concurrent_sequences=8))


@asynccontextmanager
async def workers(
    folder: Path, where: Placement = INLINE, count: int = 1
) -> AsyncIterator[tuple[InlineRuntime, Workers[EngineWorker]]]:
    runtime = InlineRuntime(copying=_copies[0], apart=Processes("engines") if where.process else None)
    try:
        yield runtime, await runtime.start(EngineWorker, [spec(folder)] * count, where)
    finally:
        await runtime.close()


@asynccontextmanager
async def engine(folder: Path) -> AsyncIterator[RemoteEngine]:
    async with workers(folder) as (runtime, group):
        remote = RemoteEngine(PeerOfRank(group, 0), runtime, "test")
        await remote.start()
        try:
            yield remote
        finally:
            await remote.stop()


async def until(condition: object, seconds: float = 20.0) -> None:
    for _ in range(int(seconds / 0.01)):
        if condition():  # type: ignore[operator]
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come about")


async def rest(chunks: AsyncIterator[TokenChunk], got: list[TokenChunk]) -> None:
    async for chunk in chunks:
        got.append(chunk)  # noqa: PERF401 (what came before an error counts)


@pytest.mark.usefixtures("copies")
def test_it_samples_what_the_engine_itself_does(tmp_path: Path) -> None:
    wanted = [
        request(f"r{number}", prompt(number, 5 + number), 20, key=number, stream=True, return_kept=True, top_k=20)
        for number in range(4)
    ]

    async def main() -> None:
        async with serving(tiny_model()) as here:
            expected = await asyncio.gather(*(collect(here, one) for one in wanted))
        async with engine(tmp_path) as remote:
            got = await asyncio.gather(*(collect(remote, one) for one in wanted))  # type: ignore[arg-type]
            assert remote.slots == 8
            await until(lambda: remote.stats().generated_tokens == 80)
        for mine, theirs in zip(expected, got, strict=True):
            assert np.array_equal(mine.tokens, theirs.tokens)
            assert np.array_equal(mine.logprobs, theirs.logprobs)
            assert np.array_equal(mine.kept.data, theirs.kept.data)
            assert mine.finish_reason is theirs.finish_reason

    asyncio.run(main())


def test_a_judge_has_its_weights_once_and_comes_back_on_them(tmp_path: Path) -> None:
    """As an engine of the policy has them, and after a death as well. It samples what it did."""
    given = spec(tmp_path)

    async def main() -> None:
        runtime, sizes = InlineRuntime(), []
        try:
            for kind in (EngineWorker, JudgeEngineWorker):
                before = tensor_bytes()
                group = await runtime.start(kind, [given], INLINE)
                await group.call("start", rank=0, what="a start")
                sizes.append(tensor_bytes() - before)
            judge = group.here(0)
            assert judge is not None
            answer = await collect(judge._engine, request("a", prompt(1, 6), 8))
            judge._engine.kill("of the test")
            await group.call("revive", None, rank=0, what="its return")
            again = await collect(judge._engine, request("b", prompt(1, 6), 8))
            assert np.array_equal(answer.tokens, again.tokens)
            sizes.append(tensor_bytes() - before)
        finally:
            await runtime.close()
        assert sizes[1] == sizes[2] == sizes[0]

    asyncio.run(main())


def test_what_a_client_pinned_is_released_when_its_stream_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with workers(tmp_path) as (_, group):
            await group.call("start", rank=0, what="a start")
            items = group.stream("outputs", "gone", rank=0, what="outputs", seconds=60)
            async with aclosing(items):
                await anext(items)
                await group.call("pin", "gone", INITIAL, rank=0, what="a pin")
                publisher = MemoryPublisher()
                publisher.publish(Version(0, 1), tiny_model(seed=1).named_parameters())
                offer = publisher.receiver().offer()
                update = asyncio.ensure_future(
                    group.call("update", offer, SwapMode.RECOMPUTE, rank=0, what="new weights")
                )
                await asyncio.sleep(0.2)
                assert not update.done(), "the version is held"
            await asyncio.wait_for(update, 30)

    asyncio.run(main())


@pytest.mark.usefixtures("copies")
def test_leaving_a_request_aborts_it_and_a_bad_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aborted: list[str] = []
    abort = EmbeddedEngine.abort

    def watched(engine: EmbeddedEngine, request_ids: Iterable[str]) -> None:
        aborted.extend(request_ids := list(request_ids))
        abort(engine, request_ids)

    def slow(core: EngineCore) -> object:
        time.sleep(0.01)
        return step(core)

    step = EngineCore.step
    monkeypatch.setattr(EmbeddedEngine, "abort", watched)
    monkeypatch.setattr(EngineCore, "step", slow)

    async def main() -> None:
        async with engine(tmp_path) as remote:
            async with aclosing(remote.generate(request("left", prompt(1, 5), 100, stream=True))) as chunks:
                assert (await anext(chunks)).finish_reason is None
            await until(lambda: "left" in aborted)
            await until(lambda: remote.stats().decode_steps > 0 and remote.stats().running == 0)
            with pytest.raises(RequestError, match="vocabulary"):
                await collect(remote, request("bad", np.array([1000], np.int32), 4))  # type: ignore[arg-type]

    asyncio.run(main())


@pytest.mark.usefixtures("copies")
def test_an_update_is_received_by_the_worker_and_a_pin_holds_it_back(tmp_path: Path) -> None:
    async def main() -> None:
        publisher = MemoryPublisher()
        publisher.publish(Version(0, 1), tiny_model(seed=1).named_parameters())
        one = request("r", prompt(1, 5), 12, key=3)
        async with serving(tiny_model(seed=1)) as here:
            expected = await collect(here, one)
        async with engine(tmp_path) as remote:
            pin = remote.pin()
            update = asyncio.create_task(remote.update(publisher.receiver(), SwapMode.RECOMPUTE))
            await asyncio.sleep(0.1)
            assert not update.done()
            assert remote.version == pin.version == INITIAL
            pin.release()
            report = await update
            assert report is not None
            assert remote.version == report.version == Version(0, 1)
            assert await remote.update(publisher.receiver(), SwapMode.RECOMPUTE) is None
            got = await collect(remote, one)  # type: ignore[arg-type]
            assert np.array_equal(got.tokens, expected.tokens)
            assert set(got.versions) == {1}

    asyncio.run(main())


def test_a_pin_on_a_version_that_the_engine_has_just_left_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        publisher = MemoryPublisher()
        publisher.publish(Version(0, 1), tiny_model(seed=1).named_parameters())
        async with workers(tmp_path) as (runtime, group):
            remote = RemoteEngine(PeerOfRank(group, 0), runtime, "test")
            await remote.start()
            for task in remote._tasks[1:]:  # it hears no more of the engine's state
                task.cancel()
            await group.call("update", publisher.receiver().offer(), SwapMode.KEEP, rank=0, what="weights")
            pin = remote.pin()
            assert pin.version == INITIAL
            await until(lambda: pin.is_lost)
            pin.release()
            await remote.stop()

    asyncio.run(main())


def test_an_engine_that_dies_in_its_worker_comes_back_with_the_newest_version(tmp_path: Path, copies: bool) -> None:
    async def main() -> None:
        publisher = MemoryPublisher()
        publisher.publish(Version(0, 1), tiny_model(seed=1).named_parameters())
        async with workers(tmp_path) as (runtime, group):
            remote = RemoteEngine(PeerOfRank(group, 0), runtime, "test")
            await remote.start()
            chunks = remote.generate(request("long", prompt(1, 5), 100, stream=True))
            await anext(chunks)
            await group.call("kill", "of this test", rank=0, what="its death")
            with pytest.raises(EngineError, match="of this test"):
                await rest(chunks, [])
            if copies:
                await until(lambda: remote.failure is not None)
            assert remote.failure is not None, "known when the request fails: no other is asked of it"
            await remote.stop()
            await remote.revive(publisher.receiver())
            other = RemoteEngine(PeerOfRank(group, 0), runtime, "test")
            await other.attach()
            assert other.version == Version(0, 1)
            assert len((await collect(other, request("again", prompt(1, 5), 4))).tokens) == 4  # type: ignore[arg-type]
            await other.stop()

    asyncio.run(main())


def test_an_engine_that_is_taken_out_is_dead_to_its_other_clients_until_it_is_back(tmp_path: Path) -> None:
    async def main() -> None:
        publisher = MemoryPublisher()
        publisher.publish(Version(0, 1), tiny_model(seed=1).named_parameters())
        async with workers(tmp_path) as (runtime, group):
            owner, other = (RemoteEngine(PeerOfRank(group, 0), runtime, name) for name in ("owner", "other"))
            await owner.start()
            await other.attach()
            chunks = other.generate(request("long", prompt(1, 5), 100, stream=True))
            await anext(chunks)
            await owner.stop()
            with pytest.raises(EngineError, match="it was taken out"):
                await rest(chunks, [])
            assert other.failure is not None, "known when the request fails"
            await other.detach()
            again = RemoteEngine(PeerOfRank(group, 0), runtime, "other")
            with pytest.raises(EngineError, match="it was taken out"):
                await again.attach()
            await again.detach()
            await owner.revive(publisher.receiver())
            back = RemoteEngine(PeerOfRank(group, 0), runtime, "other")
            await back.attach()
            assert (back.failure, back.version) == (None, Version(0, 1))
            await back.detach()

    asyncio.run(main())


@pytest.mark.usefixtures("copies")
def test_an_engine_elsewhere_that_rests_is_known_to_rest_at_each_moment(tmp_path: Path) -> None:
    """What it was heard to rest comes in twice a second; what the time goes to is asked for between."""

    async def main() -> None:
        async with engine(tmp_path) as remote:
            seen = [remote.stats().idle_s]
            for number in range(3):
                await collect(remote, request(f"r{number}", prompt(number, 5), 8))  # type: ignore[arg-type]
                await until(lambda: not remote.stats().running and not remote.stats().waiting)
                before = remote.stats().idle_s
                for _ in range(4):
                    await asyncio.sleep(0.05)
                    seen.append(remote.stats().idle_s)
                assert seen[-1] - before >= 0.05
            await remote.detach()
            seen.append(remote.stats().idle_s)
            await asyncio.sleep(0.05)
            assert remote.stats().idle_s == seen[-1], "nothing is known of it any more"
        assert seen == sorted(seen), "totals never fall"

    asyncio.run(main())


def test_a_blocked_event_loop_is_not_the_death_of_an_engine_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.engines.remote.SILENCE_S", 0.3)
    _copies[0] = False

    async def main() -> None:
        async with engine(tmp_path) as remote:
            time.sleep(1.0)  # noqa: ASYNC251
            await asyncio.sleep(0.3)
            assert remote.failure is None
            assert len((await collect(remote, request("r", prompt(1, 5), 4))).tokens) == 4  # type: ignore[arg-type]
            before = remote.stats()
            await remote.detach()
            after = remote.stats()
            assert before.generated_tokens == after.generated_tokens == 4
            assert after.idle_s >= before.idle_s, "totals never fall"

    try:
        asyncio.run(main())
    finally:
        _copies[0] = True


@pytest.mark.slow
@pytest.mark.cpu
def test_a_kill_costs_its_own_requests_and_what_was_received_stays(tmp_path: Path) -> None:
    async def main() -> None:
        publisher = DiskPublisher(tmp_path / "weights")
        publisher.publish(Version(0, 1), tiny_model(seed=1).named_parameters())
        one = request("one", prompt(1, 5), 20, key=3, stream=True)
        async with serving(tiny_model()) as here:
            expected = await collect(here, one)
        async with workers(tmp_path / "model", OWN, count=2) as (runtime, group):
            remotes = [RemoteEngine(PeerOfRank(group, rank), runtime, "test") for rank in range(2)]
            for remote in remotes:
                await remote.start()
            victim = child("engine/0")
            chunks = remotes[0].generate(request("long", prompt(1, 5), 100, stream=True))
            got = [await anext(chunks)]
            beside = asyncio.create_task(collect(remotes[1], one))  # type: ignore[arg-type]
            os.kill(victim.pid, signal.SIGKILL)
            with pytest.raises(EngineError, match="ended with signal SIGKILL"):
                await rest(chunks, got)
            assert sum(len(chunk.tokens) for chunk in got) > 0
            assert "engine/0 is lost" in str(remotes[0].failure)
            theirs = await beside
            assert np.array_equal(theirs.tokens, expected.tokens)
            assert np.allclose(theirs.logprobs, expected.logprobs, atol=1e-5)
            await remotes[0].stop()
            await group.restart(0)
            back = RemoteEngine(PeerOfRank(group, 0), runtime, "test")
            await back.start()
            assert await back.update(publisher.receiver(), SwapMode.RECOMPUTE) is not None
            assert set((await collect(back, request("again", prompt(1, 5), 4))).versions) == {1}  # type: ignore[arg-type]
            for each in (back, remotes[1]):
                await each.stop()

    asyncio.run(main())


def test_one_that_begins_behind_what_is_published_rests_for_all_who_ask_it(tmp_path: Path) -> None:
    """As one that is made anew: others find it before whoever made it has it updated."""

    async def main() -> None:
        publisher = MemoryPublisher()
        publisher.publish(Version(0, 1), tiny_model(seed=1).named_parameters())
        async with workers(tmp_path) as (runtime, group):
            owner, client = (RemoteEngine(PeerOfRank(group, 0), runtime, name) for name in ("owner", "client"))
            await owner.start(is_behind=True)
            await client.attach()
            assert owner.rests
            assert client.rests
            await owner.update(publisher.receiver(), SwapMode.RECOMPUTE)
            assert not owner.rests
            await until(lambda: not client.rests)
            assert client.version == Version(0, 1)
            await client.detach()
            await owner.stop()

    asyncio.run(main())


def test_weights_of_another_processs_memory_are_refused() -> None:
    from headrace.weights.plane import WeightError, WeightOffer
    from headrace.weights.receiving import receiver_of

    with pytest.raises(WeightError, match="another process"):
        receiver_of(WeightOffer(INITIAL, "memory", "no such"))
    with pytest.raises(WeightError, match="no transport"):
        receiver_of(WeightOffer(INITIAL, "pigeon", ""))
    publisher = MemoryPublisher()
    publisher.publish(INITIAL, [("a", torch.ones(2))])
    offer = publisher.receiver().offer()
    assert offer is not None
    assert receiver_of(offer).latest() == INITIAL
