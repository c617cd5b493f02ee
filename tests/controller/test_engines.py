"""Several engines in one run: any may die and come back, none is missed, and no sample pays for it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from controller_jobs import make_job

from headrace.cli.main import main
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.protocol import EngineError, GenerateRequest, SwapMode, SwapReport, TokenChunk
from headrace.store import RunReader
from headrace.weights.plane import WeightError, WeightReceiver

BATCHES, ETA = 10, 2


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return make_job(
        tmp_path / "job",
        trainer__batches=BATCHES,
        async__max_staleness=ETA,
        rollout__sampling__max_new_tokens=24,
        engine__replicas=2,
    )


def train(job: Path, folder: Path, *more: str) -> int:
    return main(["train", str(job), *more, "--dir", str(folder)])


def looked_at(folder: Path, status: str = "finished") -> tuple[Counter[str], list[dict[str, Any]]]:
    """The kinds of events, and the batches: the law and the bound hold in them."""
    with RunReader(folder) as reader:
        assert reader.status().name == status
        reader.counts().check()
        kinds = Counter(event.kind for event in reader.events.read())
        batches = [row.record for row in reader.metrics.read("batch")]
    assert max((int(stale) for record in batches for stale in record["staleness"]), default=0) <= ETA
    assert not any(record["failed_samples"] for record in batches), "an engine's death is no sample's failure"
    assert kinds["failed_sample"] == 0
    return kinds, batches


class Engines:
    """All engines that a run makes, in the order in which they are first asked; each death as the test has it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dies: Callable[[int, int], bool]) -> None:
        """`dies`: whether the engine of this place dies at its request of this number."""
        self.asked: dict[int, int] = {}
        self.order: list[EmbeddedEngine] = []
        generate = EmbeddedEngine.generate

        async def watched(engine: EmbeddedEngine, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
            if engine not in self.order:
                self.order.append(engine)
            place = self.order.index(engine)
            self.asked[place] = self.asked.get(place, 0) + 1
            if dies(place, self.asked[place]):
                engine.kill("a fault was injected")
            async for chunk in generate(engine, request):
                yield chunk

        monkeypatch.setattr(EmbeddedEngine, "generate", watched)


def test_two_engines_share_a_run(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = Engines(monkeypatch, lambda place, number: False)
    assert train(job, tmp_path / "run") == 0
    kinds, _ = looked_at(tmp_path / "run")
    assert len(engines.order) == 2, "both have work"
    assert kinds["engine_died"] == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["version"] == BATCHES
    with RunReader(tmp_path / "run") as reader:
        swaps = Counter(event.data.get("engine") for event in reader.events.read() if event.kind == "swap")
    assert swaps.keys() == {0, 1}, "each takes new weights by itself"


def test_several_sections_of_engines_share_a_run(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = Engines(monkeypatch, lambda place, number: False)
    config = yaml.safe_load(job.read_text())
    config["engine"] = [{"max_concurrent_sequences": 8}, {"max_concurrent_sequences": 4, "replicas": 2}]
    job.write_text(yaml.safe_dump(config))
    assert main(["check", str(job)]) == 0
    assert "3 engines, each float32" in capsys.readouterr().out
    assert train(job, tmp_path / "run") == 0
    looked_at(tmp_path / "run")
    assert {engine.slots for engine in engines.order} == {4, 8}
    with RunReader(tmp_path / "run") as reader:
        swaps = Counter(event.data.get("engine") for event in reader.events.read() if event.kind == "swap")
    assert swaps.keys() == {0, 1, 2}
    assert train(job, tmp_path / "run", "trainer.batches=12", "--resume") == 0


def test_each_episode_may_go_to_an_engine_of_its_own(job: Path, tmp_path: Path) -> None:
    assert train(job, tmp_path / "run", "engine.spread=episode") == 0
    looked_at(tmp_path / "run")


def test_one_is_killed_in_mid_run_and_comes_back(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Engines(monkeypatch, lambda place, number: place == 1 and number == 9)
    assert train(job, tmp_path / "run", "trainer.batches=20", "data.shuffle=false") == 0
    kinds, _ = looked_at(tmp_path / "run")
    assert kinds["engine_died"] == kinds["engine_back"] == 1


@pytest.mark.slow
@pytest.mark.copied
def test_both_die_and_come_back_within_the_deadline(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer's patience is shorter than the outage: its clock stands still."""
    successor = EmbeddedEngine.successor

    async def late(self: EmbeddedEngine, receiver: WeightReceiver) -> EmbeddedEngine:
        await asyncio.sleep(12)
        return await successor(self, receiver)

    Engines(monkeypatch, lambda place, number: place < 2 and number == 9)
    monkeypatch.setattr(EmbeddedEngine, "successor", late)
    limits = ("runtime.stall_timeout_s=10", "rollout.episode_timeout_s=8", "reward.timeout_s=3")
    assert train(job, tmp_path / "run", *limits) == 0
    kinds, _ = looked_at(tmp_path / "run")
    assert kinds["engine_died"] == kinds["engine_back"] == 2


@pytest.mark.slow
@pytest.mark.copied
def test_where_none_comes_back_the_run_stops_with_its_reason_and_a_checkpoint(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def lost(self: EmbeddedEngine, receiver: WeightReceiver) -> EmbeddedEngine:
        raise EngineError("the machine is gone")

    folder = tmp_path / "run"
    Engines(monkeypatch, lambda place, number: number == 20)
    monkeypatch.setattr(EmbeddedEngine, "successor", lost)
    assert train(job, folder, "engine.return_deadline_s=1") == 1
    error = capsys.readouterr().err
    assert "no engine has served for 1 s (engine.return_deadline_s)" in error
    assert "a fault was injected; resume the run to go on" in error
    kinds, batches = looked_at(folder, "failed")
    assert kinds["engine_died"] == 2
    assert kinds["engine_not_back"] >= 2
    assert (folder / "checkpoints" / f"step_{len(batches)}").is_dir()
    monkeypatch.undo()
    assert train(job, folder, "--resume") == 0
    looked_at(folder)


def failing_swaps(monkeypatch: pytest.MonkeyPatch, fails: Callable[[int], bool]) -> None:
    """Updates of the engines by their lanes' places."""
    update = EmbeddedEngine.update

    async def tried(self: EmbeddedEngine, receiver: WeightReceiver, mode: SwapMode) -> SwapReport | None:
        rank = getattr(self._runtime, "rank", None)  # of one that is a worker
        if fails(int(self._lane.partition("/")[2] or 0) if rank is None else rank):
            raise WeightError("the weights came damaged")
        return await update(self, receiver, mode)

    monkeypatch.setattr(EmbeddedEngine, "update", tried)


@pytest.mark.slow
@pytest.mark.copied
def test_a_swap_that_fails_never_stops_a_run_while_another_engine_takes_the_newest(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_swaps(monkeypatch, lambda place: place == 1)
    assert train(job, tmp_path / "run", "engine.return_deadline_s=1", "trainer.batches=20") == 0
    kinds, _ = looked_at(tmp_path / "run")
    assert kinds["update_failed"] >= 1


@pytest.mark.slow
@pytest.mark.copied
def test_when_no_engine_can_take_the_newest_the_run_stops_once_the_gate_was_shut_for_so_long(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def damaged(self: EmbeddedEngine, receiver: WeightReceiver) -> EmbeddedEngine:
        raise WeightError("the weights came damaged")

    failing_swaps(monkeypatch, lambda place: True)
    monkeypatch.setattr(EmbeddedEngine, "successor", damaged)
    assert train(job, tmp_path / "run", "engine.return_deadline_s=2") == 1
    assert "engine.return_deadline_s); " in capsys.readouterr().err.replace("), and nothing may start on v0; ", "); ")
    _, batches = looked_at(tmp_path / "run", "failed")
    assert len(batches) == ETA + 1, "what the bound allows was trained"
    monkeypatch.undo()
    assert train(job, tmp_path / "run", "--resume") == 0


@pytest.mark.parametrize("deaths", [1, 2])
def test_an_evaluation_whose_engine_dies_begins_again_once_and_is_then_given_up(
    deaths: int, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluation before the first batch asks first."""
    Engines(monkeypatch, lambda place, number: place < deaths and number == 2)
    assert train(job, tmp_path / "run", "trainer.batches=3") == 0
    kinds, _ = looked_at(tmp_path / "run")
    assert kinds["evaluation_again"] == 1
    assert kinds["evaluation_given_up"] == deaths - 1
    with RunReader(tmp_path / "run") as reader:
        assert len(reader.metrics.read("eval")) == 3 - deaths
