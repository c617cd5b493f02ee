"""Engines and trainer on the same devices by turns: the same results, and never memory for both."""

from __future__ import annotations

import asyncio
import math
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from children import child
from controller_jobs import CHARACTERS, CONFIGS, make_job
from safetensors.torch import load_file
from tensor_bytes import tensor_bytes

from headrace.cli.main import main
from headrace.config import TrainConfig, load_config
from headrace.controller.planning.memory_estimate import estimate_memory
from headrace.engines.embedded.cache import KeyValueCache
from headrace.engines.embedded.core import EngineCore
from headrace.engines.pool_sleep import PoolSleep
from headrace.store import RunReader
from headrace.training.group import TrainerGroup
from headrace.training.trainer import HFTrainer

BATCHES = 3
CLOSE = 1e-4
"""The last bits of a token's log-prob depend on what is decoded beside it: an evaluation, what a stop left."""
TURNS = {"engine__colocated": True}
EVALUATED = {"evaluation__every": 1, "checkpoint__keep_best": "eval", "checkpoint__every": 1}
PPO = {"algorithm__recipe": "ppo", "algorithm__kl__coefficient": 0.1, "reference__placement": "hybrid"}
PROCESSES = {"engine__process": True, "trainer__placement": "process"}


def trained(folder: Path, **changes: Any) -> list[str]:
    """The kinds of a finished run's events."""
    given = {"trainer__batches": BATCHES, "async__mode": "sync", "runtime__threads": 1, **changes}
    job = make_job(folder / "job", **given)
    assert main(["train", str(job), "data.shuffle=false", "--dir", str(folder / "run"), "--plain"]) == 0
    with RunReader(folder / "run") as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        return [event.kind for event in reader.events.read()]


def states(folder: Path) -> dict[str, torch.Tensor]:
    """All that the last checkpoint holds of those who train."""
    (last,) = (folder / "run" / "checkpoints").glob(f"step_{BATCHES}")
    found = {}
    for file in last.rglob("*.safetensors"):
        found |= {f"{file.relative_to(last)}:{name}": value for name, value in load_file(file).items()}
    return found


def same(one: Path, other: Path) -> bool:
    """But for a share of each tensor's largest value."""
    expected, found = states(one), states(other)
    assert expected.keys() == found.keys()
    return all((found[name] - value).abs().max() <= CLOSE * value.abs().max() for name, value in expected.items())


def watched(patch: pytest.MonkeyPatch) -> dict[str, int]:
    """The most bytes that tensors of this process have had: when an optimiser step began, when the KV cache of an
    engine that has its weights was there and something was sampled, and of that cache alone."""
    seen = {"trains": 0, "generates": 0, "cache": 0}
    step, decode = HFTrainer.step, EngineCore.step

    def note(what: str, size: int) -> None:
        seen[what] = max(seen[what], size)

    def stepped(trainer: HFTrainer) -> Any:
        note("trains", tensor_bytes())
        return step(trainer)

    def decoded(core: EngineCore) -> Any:
        if core.totals.decode_steps % 5 == 0:
            note("generates", tensor_bytes())
        note("cache", sum(layer.nbytes for layer in core._cache.layers))
        return decode(core)

    patch.setattr(HFTrainer, "step", stepped)
    patch.setattr(EngineCore, "step", decoded)
    return seen


@pytest.mark.slow
@pytest.mark.cpu
def test_results_are_the_same_and_the_peak_is_below_the_sum_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, int]] = []
    for number, more in enumerate(({}, TURNS)):
        with monkeypatch.context() as patch:
            seen.append(watched(patch))
            trained(tmp_path / str(number), **more)
    assert same(tmp_path / "0", tmp_path / "1")
    model = sum(tensor.nbytes for tensor in load_file(tmp_path / "0/job/model/model.safetensors").values())
    usual, turns = seen
    assert usual["cache"] == turns["cache"] > 0
    # While it is trained: neither the cache, nor the engine's weights. While it is generated: no gradients.
    assert usual["trains"] - turns["trains"] >= turns["cache"] + model
    assert usual["generates"] - turns["generates"] >= model
    assert max(turns["trains"], turns["generates"]) < max(usual["trains"], usual["generates"])


@pytest.mark.slow
@pytest.mark.parametrize("more", [EVALUATED, PPO], ids=["evaluated", "ppo"])
def test_who_else_needs_engine_or_trainer_has_them_in_their_turn(tmp_path: Path, more: dict[str, Any]) -> None:
    """Evaluations that are still on, the best checkpoint, which waits for one; a critic and a hybrid reference, which
    score rows before the actor has them."""
    asleep: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        scores, awake = TrainerGroup.scores, KeyValueCache.reserve

        async def scored(group: TrainerGroup, column: str, rows: Any) -> Any:
            asleep.append(column)
            return await scores(group, column, rows)

        def reserved(cache: KeyValueCache, length: int) -> None:
            assert cache.layers
            awake(cache, length)

        patch.setattr(TrainerGroup, "scores", scored)
        patch.setattr(KeyValueCache, "reserve", reserved)
        trained(tmp_path / "turns", **TURNS, **more)
    trained(tmp_path / "usual", **more)
    assert same(tmp_path / "usual", tmp_path / "turns")
    assert bool(asleep) is (more is PPO)


@pytest.mark.slow
@pytest.mark.parametrize("held", [False, True], ids=["generates", "waits for an evaluation"])
def test_a_run_that_is_stopped_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: bool) -> None:
    """While the trainer sleeps: in the midst of a batch's generation, or, with the batch sealed, while an evaluation
    keeps it from its turn, which would last for ever."""
    decode, lie_down, signals = EngineCore.step, PoolSleep.lie_down, []

    def stop() -> None:
        if not signals:
            signals.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    def decoded(core: EngineCore) -> Any:
        if core.version.number == 1:
            stop()
        return decode(core)

    async def waited(sleep: PoolSleep, seconds: float, until: Any = bool) -> bool:
        pool: Any = sleep._pool
        if pool.version.number == 1 and not signals:
            pool.members[0].pins += 1
            asyncio.get_running_loop().call_soon(stop)
            try:
                return await lie_down(sleep, seconds, until)
            finally:
                pool.members[0].pins -= 1
        return await lie_down(sleep, seconds, until)

    given = {"trainer__batches": BATCHES, "async__mode": "sync", "runtime__threads": 1, "data__eval": None}
    trained(tmp_path / "usual", data__eval=None)
    command = ["train", str(make_job(tmp_path / "turns/job", **given, **TURNS)), "data.shuffle=false", "--plain"]
    with monkeypatch.context() as patch:
        if held:
            patch.setattr(PoolSleep, "lie_down", waited)
        else:
            patch.setattr(EngineCore, "step", decoded)
        main([*command, "--dir", str(tmp_path / "turns/run")])
    with RunReader(tmp_path / "turns/run") as reader:
        assert reader.status().name == "stopped"
        assert len([*reader.metrics.read("batch")]) == 1
    assert main([*command, "--dir", str(tmp_path / "turns/run"), "--resume"]) == 0
    assert same(tmp_path / "usual", tmp_path / "turns")


@pytest.mark.slow
@pytest.mark.cpu
def test_with_processes_one_of_which_dies_in_each_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer in the midst of its turn, the engine while it sleeps."""
    step, killed = TrainerGroup.step, []

    async def stepped(group: TrainerGroup) -> Any:
        if len(killed) < 2:
            name = ("trainer/0", "engine/0")[len(killed)]
            victim = child(name)
            killed.append(name)
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait(30)
        return await step(group)

    monkeypatch.setattr(TrainerGroup, "step", stepped)
    kinds = trained(tmp_path / "turns", **TURNS, **PROCESSES)
    assert killed == ["trainer/0", "engine/0"]
    assert {"trainer_lost", "went_back", "engine_died", "engine_back"} <= {*kinds}
    with RunReader(tmp_path / "turns/run") as reader:
        batches = [row.record for row in reader.metrics.read("batch")]
    assert [record["batch"] for record in batches][-BATCHES:] == [*range(BATCHES)]
    assert all(set(record["staleness"]) == {"0"} for record in batches)


@pytest.mark.slow
@pytest.mark.cpu
def test_with_ranks_that_cut_the_model_up(tmp_path: Path) -> None:
    """And two engines, in this process, where what is asked for together is decoded together: whoever is in several
    places sleeps in all of them."""
    ranks = {"trainer__placement": "process", "trainer__layout": {"dp": 2, "zero": 2}, "engine__replicas": 2}
    trained(tmp_path / "usual", **ranks)
    trained(tmp_path / "turns", **TURNS, **ranks)
    assert same(tmp_path / "usual", tmp_path / "turns")


def test_what_check_says_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, in units of 4 bytes a parameter: 1 each for weights, gradients and the engine's, 2 for moments and for
    the weight plane, 3 for what a checkpoint is written from. The engine's output layer counts once more, being laid
    out anew."""
    job = make_job(tmp_path, async__mode="sync")
    usual = estimate_memory(load_config(TrainConfig, job), CONFIGS["qwen3"](), torch.device("cpu"))
    turns = estimate_memory(
        load_config(TrainConfig, job, ["engine.colocated=true"]), CONFIGS["qwen3"](), torch.device("cpu")
    )
    one, cache = 4 * usual.parameters, usual.uses["engine: KV cache"]
    tied = 4 * len(CHARACTERS) * 32 + 4 * 2 * 32
    assert (usual.turns, usual.needed) == ({}, usual.total)
    assert usual.total == 11 * one + 2 * tied + cache
    assert dict(turns.turns) == {
        "while a batch is generated": 9 * one + tied + cache,
        "while it is trained": 9 * one,
        "at the start, as models are loaded": 7 * one + tied,
    }
    assert turns.needed == max(9 * one + tied + cache, 7 * one + tied) < usual.needed
    # On a device, those that train leave nothing there: the host has their weights and moments.
    monkeypatch.setattr("headrace.controller.planning.free_memory.free_bytes", lambda device: 2**34)
    found = estimate_memory(
        load_config(TrainConfig, job, ["engine.colocated=true"]), CONFIGS["qwen3"](), torch.device("cuda")
    )
    assert found.on_host["trainer: float32 weights and moments, asleep"] == 3 * 2 ** math.ceil(math.log2(one))
    generated, activations = found.turns["while a batch is generated"], found.uses["engine: activations and logits"]
    graphs, products = found.uses["engine: CUDA graphs"], found.uses["workspaces of matrix products"]
    assert generated == one + tied + 2 * one + activations + graphs + products + found.uses["engine: KV cache"]
    given = ["engine.colocated=true", "rollout.sampling.top_p=0.9"]
    cut = estimate_memory(load_config(TrainConfig, job, given), CONFIGS["qwen3"](), torch.device("cuda"))
    waiting, begun = cut.uses["engine: kept sets that wait"], "at the start, as models are loaded"
    assert cut.turns["while a batch is generated"] == generated + waiting
    at_start = ("weights", "gradients", "moments", "next version", "weight plane", "workspaces")
    loaded = sum(size for use, size in cut.uses.items() if any(word in use for word in at_start))
    assert cut.turns[begun] == found.turns[begun] == loaded


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"async__mode": "async"}, "async.mode async: .* set async.mode: sync"),
        ({"async__mode": "sync", "rollouts_only": True}, "rollouts_only: no trainer is there"),
        ({"async__mode": "sync", "engine__kind": "vllm"}, r"an engine is a server \(vllm\)"),
    ],
)
def test_what_does_not_go_by_turns_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: dict[str, Any], words: str
) -> None:
    job = make_job(tmp_path / "job", **TURNS, **given)
    assert main(["check", str(job)]) == 2
    assert re.search(words, capsys.readouterr().err.replace("\n", " "))
