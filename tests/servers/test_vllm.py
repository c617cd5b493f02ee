"""vLLM, as it is: in the environment that `make vllm-env` makes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import conforming
import few_blocks as few
import numpy as np
import psutil
import pytest
from attached import require_attached, require_lists_routes
from vllm_server import core_of, needs_vllm, serving, spec

from headrace.config.errors import ConfigError
from headrace.engines.conformance import CHECKS, Subject, a_death_is_told, nothing_is_found_of_old_weights
from headrace.engines.protocol import EngineError, FinishReason, GenerateRequest, SamplingParams, SwapMode, TokenChunk
from headrace.engines.servers.dialect import Expected
from headrace.engines.servers.vllm_told import ROUTES
from headrace.roles.workers.server_engine import ServerEngineWorker
from headrace.runtime.workers import WorkerError
from headrace.weights.disk import TENSORS, DiskPublisher
from headrace.weights.plane import WeightError
from headrace.weights.shm import ShmPublisher

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), needs_vllm]
BLOCK = 128
"""Tokens of the cache's blocks, on a CPU."""


def test_it_conforms(tmp_path: Path) -> None:
    (tmp_path / "shm").mkdir()

    async def run() -> None:
        launched_as = spec(tmp_path)
        async with serving(launched_as) as worker:
            publish = conforming.Publications(ShmPublisher(tmp_path / "shm"))
            subject = conforming.subject(worker.engine, worker.engine._services.clock, publish)
            for check in CHECKS:
                before = await found_in_cache(worker)
                await check(subject)
                if (
                    check is nothing_is_found_of_old_weights
                ):  # a prompt of 400 tokens in each mode, found once before the swap
                    assert await found_in_cache(worker) - before == len(SwapMode) * 3 * BLOCK
            for expected, words in (
                (
                    Expected({"hidden_size": 64}, 64, "float32"),
                    "has another model: its hidden_size is 128, and that of",
                ),
                (Expected({}, 4096, "float32"), "has a context of 1024 tokens, and the run needs 4096"),
                (Expected({}, 64, "bfloat16"), r"computes in torch.float32, and engine.dtype is bfloat16"),
            ):
                with pytest.raises(ConfigError, match=words):
                    await worker.engine.dialect.meet(expected)
            await require_lists_routes(worker, {"/version", *ROUTES})
            await require_taken_from_disk(worker, publish, subject, tmp_path / "disk")
            await require_attached(worker, launched_as, publish)
            await worker.engine.update(publish("a", False), SwapMode.RECOMPUTE)
            subject.held[worker.engine.version] = "a"
            await a_death_is_told(subject, core_of(worker).kill)

    asyncio.run(run())


async def found_in_cache(worker: ServerEngineWorker) -> float:
    """Tokens of prompts, so far."""
    name = "vllm:prefix_cache_hits_total"
    return sum((await worker.engine.dialect._metrics(name))[name])


async def require_taken_from_disk(
    worker: ServerEngineWorker, publish: conforming.Publications, subject: Subject, folder: Path
) -> None:
    """All of it, and nothing of a file that is not what was published, though a swap check would not see that."""
    on_disk = conforming.Publications(DiskPublisher(folder))
    on_disk.number = publish.number
    for name in ("b", "a"):
        receiver = on_disk(name, False)
        version = receiver.latest()
        assert version is not None
        await worker.engine.update(receiver, SwapMode.RECOMPUTE)
        subject.held[version] = name
        request = subject.request()
        subject.judge(request, await subject.whole(request))
    receiver = on_disk("b", False)
    file = next(folder.glob(f"*-{on_disk.number}")) / TENSORS
    data = bytearray(file.read_bytes())
    data[-1000] ^= 1
    file.write_bytes(data)
    with pytest.raises(WeightError, match=r"is damaged: its checksum differs"):
        await worker.engine.update(receiver, SwapMode.RECOMPUTE)
    publish.number = on_disk.number


@pytest.mark.soak
def test_one_whose_core_stands_is_stuck_though_its_health_is_well(tmp_path: Path) -> None:
    given = spec(tmp_path)
    given = replace(given, limits=replace(given.limits, silence_s=5.0))

    async def run() -> None:
        async with serving(given) as worker:
            core = core_of(worker)
            sampling = SamplingParams(max_new_tokens=900)
            asked = GenerateRequest("r", np.array([1, 2], np.int32), sampling, noise_key=0, stream=True)
            chunks = worker.engine.generate(asked)
            assert len((await anext(chunks)).tokens)
            core.suspend()
            with pytest.raises(EngineError, match=r"vLLM \S+ is stuck: of 1 requests no token has come for [56] s"):
                await _to_the_end(chunks)
            _, left = psutil.wait_procs([core], timeout=10)
            assert not left

    asyncio.run(run())


def test_in_bfloat16_with_few_blocks_nothing_is_lost(tmp_path: Path) -> None:
    """Of a server whose cache holds eleven sequences of a block, and so five of what they grow to, until its own
    process is killed."""
    (tmp_path / "shm").mkdir()

    async def run() -> None:
        async with serving(spec(tmp_path, dtype="bfloat16", num_gpu_blocks_override=12)) as worker:
            publish = conforming.Publications(ShmPublisher(tmp_path / "shm"))
            subject = conforming.subject(worker.engine, worker.engine._services.clock, publish)
            subject.largest_gap = few.GAP
            await few.require_finds_gross_faults(worker, subject, tmp_path, "lacks what the model has, as .*down_proj")
            half = worker.engine.slots // 2
            loads, at_once = await few.require_nothing_lost_where_it_is_full(worker, subject, until=half)
            assert loads[-1].preempted > loads[0].preempted, "it was full, and threw some out"
            assert at_once <= half, "and was given fewer"
            await few.require_orphans_end(worker, subject)

    asyncio.run(run())


@pytest.mark.soak
def test_what_was_thrown_out_does_not_hold_up_the_swap_check(tmp_path: Path) -> None:
    """Of a cache that holds the whole length of one sequence, and six that grow to it."""
    (tmp_path / "shm").mkdir()

    async def run() -> None:
        async with serving(spec(tmp_path, num_gpu_blocks_override=9)) as worker:
            engine = worker.engine
            publish = conforming.Publications(ShmPublisher(tmp_path / "shm"))
            subject, new = conforming.subject(engine, engine._services.clock, publish), publish("b", False)
            asked = [subject.request(900, seed=seed) for seed in range(6)]
            running = [asyncio.ensure_future(subject.whole(each)) for each in asked]
            while not (await few.load_of(worker)).preempted:
                await subject.clock.sleep(0.02)
            before = [each for each in running if not each.done()]
            assert await engine.update(new, SwapMode.KEEP) is not None
            ended = [each.result().finish_reason for each in before if each.done()]
            assert ended.count(FinishReason.LENGTH) <= 1, "none went on before it but what ran"
            await asyncio.gather(*running)

    asyncio.run(run())


async def _to_the_end(chunks: AsyncGenerator[TokenChunk]) -> None:
    async for _ in chunks:
        pass


@pytest.mark.soak
def test_ranks_that_share_the_model_take_what_is_published_and_leave_nothing(tmp_path: Path) -> None:
    """Two of tensor parallel, each of which compares what it has."""
    (tmp_path / "shm").mkdir()
    shared = {*Path("/dev/shm").iterdir()}

    async def run() -> None:
        async with serving(spec(tmp_path, tensor_parallel_size=2)) as worker:
            publish = conforming.Publications(ShmPublisher(tmp_path / "shm"))
            subject = conforming.subject(worker.engine, worker.engine._services.clock, publish)
            for name in ("b", "a"):
                receiver = publish(name, False)
                await worker.engine.update(receiver, SwapMode.RECOMPUTE)
                subject.held[worker.engine.version] = name
                request = subject.request()
                subject.judge(request, await subject.whole(request))
            told = await worker.engine.dialect._rpc("headrace")  # type: ignore[attr-defined]
            for each in (one["comparison"] for one in told):
                assert (each["unread"], each["different"], each["by_sum"]) == ([], [], 0)
                assert each["whole"] + each["in_part"] > 0
            assert len(told) == 2

    asyncio.run(run())
    left = {each for each in {*Path("/dev/shm").iterdir()} - shared if each.name.startswith(("psm_", "vllm_"))}
    assert not left


def test_an_option_that_it_does_not_know_is_refused_by_name(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(spec(tmp_path, no_such_option=3)):
            pass

    with pytest.raises(
        WorkerError, match=r"ConfigError: engine.args: vLLM 0\.\d+\S* does not take them: .*--no-such-option"
    ):
        asyncio.run(run())
