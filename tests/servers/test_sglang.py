"""SGLang, as it is: in the environment that `make sglang-env` makes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import conforming
import few_blocks as few
import pytest
from attached import require_attached, require_lists_routes
from sglang_server import needs_sglang, require_holds_what_is_published, spec
from vllm_server import core_of, serving

from headrace.config.errors import ConfigError
from headrace.engines.conformance import CHECKS, a_death_is_told
from headrace.engines.protocol import SwapMode
from headrace.engines.servers.dialect import Expected
from headrace.engines.servers.sglang import SglangDialect
from headrace.engines.servers.sglang_told import routes
from headrace.roles.workers.server_engine import ServerEngineWorker
from headrace.runtime.workers import WorkerError
from headrace.weights.disk import DiskPublisher
from headrace.weights.shm import ShmPublisher

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), needs_sglang]


def test_it_conforms(tmp_path: Path) -> None:
    (tmp_path / "shm").mkdir()

    async def run() -> None:
        launched_as = spec(tmp_path)
        async with serving(launched_as) as worker:
            publish = conforming.Publications(ShmPublisher(tmp_path / "shm"))
            subject = conforming.subject(worker.engine, worker.engine._services.clock, publish)
            for check in CHECKS:
                await check(subject)
            await require_holds_what_is_published(worker, publish)
            on_disk = conforming.Publications(DiskPublisher(tmp_path / "disk"))
            on_disk.number = worker.engine.version.number
            await require_holds_what_is_published(worker, on_disk)
            load = await worker.engine.dialect.fares()
            assert load is not None
            assert (load.running, load.kv_use < 1) == (0, True)
            for expected, words in (
                (
                    Expected({"hidden_size": 64}, 64, "float32"),
                    "has another model: its hidden_size is 128, and that of",
                ),
                (Expected({}, 4096, "float32"), r"takes 1024 tokens, .* or lower that to 1025"),
                (Expected({}, 64, "bfloat16"), "computes in 'float32', and engine.dtype is bfloat16"),
            ):
                with pytest.raises(ConfigError, match=words):
                    await worker.engine.dialect.meet(expected)
            await require_vocabulary_is_told(worker)
            await require_lists_routes(worker, {"/server_info", *routes(by_group=False), *routes(by_group=True)})
            await require_attached(worker, launched_as, on_disk)
            await worker.engine.update(on_disk("a", False), SwapMode.RECOMPUTE)
            subject.held[worker.engine.version] = "a"
            await a_death_is_told(subject, core_of(worker).kill)

    asyncio.run(run())


async def require_vocabulary_is_told(worker: ServerEngineWorker) -> None:
    """By log-probs alone, as where the server's folder is on another machine."""
    http = worker._http
    assert http is not None
    other = SglangDialect(http, 2 * conforming.VOCAB, worker._services)
    with pytest.raises(
        ConfigError, match=r"log-probs are of a vocabulary of about 51\d ids, and .* has 1,024; start it"
    ):
        await other.meet(Expected({}, conforming.CONTEXT, "float32"))


def test_in_bfloat16_with_a_small_cache_nothing_is_lost(tmp_path: Path) -> None:
    """Of a server whose cache holds eight of what sequences grow to, until its own process is killed."""
    (tmp_path / "shm").mkdir()

    async def run() -> None:
        async with serving(spec(tmp_path, dtype="bfloat16", max_total_tokens=1500)) as worker:
            publish = conforming.Publications(ShmPublisher(tmp_path / "shm"))
            subject = conforming.subject(worker.engine, worker.engine._services.clock, publish)
            subject.largest_gap = few.GAP
            await few.require_finds_gross_faults(worker, subject, tmp_path, few.BOUND)
            loads, _ = await few.require_nothing_lost_where_it_is_full(worker, subject)
            assert 0.7 < max(load.kv_use for load in loads) <= 1.0
            assert 0 < max(load.running for load in loads) <= worker.engine.slots // 2, "the rest waits there"
            await few.require_orphans_end(worker, subject)

    asyncio.run(run())


def test_an_option_that_it_does_not_know_is_refused_by_name(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(spec(tmp_path, no_such_option=3)):
            pass

    with pytest.raises(WorkerError, match=r"ConfigError: engine.args: SGLang 0\.5.* does not take .*--no-such-option"):
        asyncio.run(run())


def test_without_what_starts_it_on_a_cpu_it_is_told_what_to_install(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(spec(tmp_path, python=sys.executable)):
            pass

    with pytest.raises(WorkerError, match=r"ConfigError: .* lacks headrace-sglang-cpu, by which SGLang starts"):
        asyncio.run(run())
