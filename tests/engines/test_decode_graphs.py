"""Which CUDA graphs an engine captures, and when. torch's part is stood in for: no device is needed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engines_helpers import collect, prompt, request, tiny_model
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import EngineConfig
from headrace.config.model import PolicyEngineConfig
from headrace.engines.embedded.cache import KeyValueCache
from headrace.engines.embedded.cache_plan import CachePlan, cache_shape
from headrace.engines.embedded.core import EngineCore
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.embedded.runners import graphs
from headrace.engines.embedded.runners.fused_runner import FusedRunner
from headrace.engines.embedded.runners.graphs import DecodeGraphs, graph_sizes
from headrace.roles.workers import engine as workers
from headrace.roles.workers.engine import EngineSpec, EngineWorker, JudgeEngineWorker, LentEngineWorker
from headrace.runtime.inline import InlineRuntime
from headrace.weights.version import INITIAL


class Captured(DecodeGraphs):
    """Of a cache with so many slots; captures nothing but its log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slots: int, context: int) -> None:
        monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
        self.log: list[tuple[int, int]] = []
        cache: Any = SimpleNamespace(slots=slots, max_context=context)
        side: Any = None
        super().__init__(lambda *given: torch.zeros(0), cache, torch.arange(slots + 1), 7, side)

    def _capture(self, bucket: int, reach: int) -> Any:
        self.log.append((bucket, reach))
        inputs = {name: torch.zeros(bucket).long() for name in ("tokens", "positions", "rows")}
        return SimpleNamespace(graph=SimpleNamespace(replay=lambda: None), **inputs)


def test_sizes_are_powers_of_two_up_to_what_the_cache_has_the_largest_first() -> None:
    assert graph_sizes(3, 600) == [
        (3, 600),
        (3, 512),
        (2, 600),
        (2, 512),
        (3, 256),
        (1, 600),
        (2, 256),
        (1, 512),
        (1, 256),
    ]
    assert graph_sizes(1, 50) == [(1, 50)]


@given(st.integers(1, 70), st.integers(1, 3000), st.data())
def test_no_step_needs_another_than_those(slots: int, context: int, data: st.DataObject) -> None:
    count, length = data.draw(st.integers(1, slots)), data.draw(st.integers(1, context))
    with pytest.MonkeyPatch.context() as patch:
        made = Captured(patch, slots, context)
        made.decode(torch.zeros(count).long(), torch.zeros(count).long(), length)
        assert made.log[0] in graph_sizes(slots, context)


def test_all_are_captured_at_once_and_none_later(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Captured(monkeypatch, 5, 300)
    made.decode(torch.zeros(1).long(), torch.zeros(1).long(), 9)
    assert made.log == [(1, 256)]
    made.capture()
    assert sorted(made.log) == sorted(graph_sizes(5, 300))
    assert made.log[1] == (5, 300)
    for count, length in ((1, 1), (5, 300), (3, 257)):
        made.decode(torch.zeros(count).long(), torch.zeros(count).long(), length)
    assert len(made.log) == graphs.most_graphs(5, 300) == 4 * 2


@pytest.mark.parametrize("captures", [True, False])
def test_an_engine_captures_as_it_starts_unless_it_is_to_sleep_by_turns(
    captures: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[str] = []
    monkeypatch.setattr(FusedRunner, "capture", lambda runner: log.append("captures"))

    async def run() -> None:
        runtime = InlineRuntime()
        engine = EmbeddedEngine(tiny_model("qwen3"), config=EngineConfig(), runtime=runtime, captures=captures)
        await engine.start()
        log.append("serves")
        await collect(engine, request("r", prompt(1, 5), 2))
        await engine.stop()
        await runtime.close()

    asyncio.run(run())
    assert log == (["captures", "serves"] if captures else ["serves"])


@pytest.mark.parametrize(
    ("worker", "config", "captures"),
    [
        (EngineWorker, EngineConfig(), True),
        (JudgeEngineWorker, EngineConfig(), True),
        (EngineWorker, PolicyEngineConfig(lent=1), True),
        (LentEngineWorker, PolicyEngineConfig(lent=1), False),
        (EngineWorker, PolicyEngineConfig(colocated=True), False),
    ],
)
def test_an_engine_that_is_colocated_or_lent_sleeps_by_turns(
    worker: type[EngineWorker], config: EngineConfig, captures: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[bool] = []
    monkeypatch.setattr(workers, "load_causal_lm", lambda path, **how: None)
    monkeypatch.setattr(workers, "EmbeddedEngine", lambda model, **how: given.append(how["captures"]))
    worker._made(object.__new__(worker), EngineSpec("m", "float32", "cpu", config), None)  # type: ignore[arg-type]
    assert given == [captures]


def test_captures_have_one_stream_however_often_the_cache_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: made.append(str(device)) or object())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    model = tiny_model("qwen3")
    plan = CachePlan(2, 16, bytes_wanted=0)
    runner = FusedRunner.of(model, KeyValueCache(cache_shape(model.config), plan, model.dtype, model.device))
    assert runner is not None
    one = runner._made_graphs()
    runner.forget_cache()
    assert runner._made_graphs() is not one
    assert made == ["cpu"]


def test_a_swap_check_is_rehearsed_beside_what_an_engine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a device does before it serves."""
    model = tiny_model("qwen3")
    core = EngineCore(model, CachePlan(2, 16, bytes_wanted=0), 8, INITIAL, lambda: 0.0)
    seen: list[tuple[int, ...]] = []
    decode = FusedRunner.decode
    monkeypatch.setattr(
        FusedRunner, "decode", lambda runner, tokens, *more: seen.append(tokens.shape) or decode(runner, tokens, *more)
    )
    core.rehearse_check()
    assert seen == [(64,)] * 4  # 256 tokens behind another, in samples of 5
