"""Engines on the trainer's devices, while it waits for its batch: whole runs of them."""

from __future__ import annotations

import json
import math
import os
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from children import child
from controller_jobs import CHARACTERS, CONFIGS, make_job
from killing import require_nothing_lost

from headrace.cli.main import main
from headrace.config import TrainConfig, load_config
from headrace.controller.planning.memory_estimate import estimate_memory
from headrace.engines.lent import LentEngines
from headrace.engines.member import Member
from headrace.roles.lending import Lending
from headrace.roles.lending_rule import LendingRule
from headrace.store import RunReader
from headrace.training.group import TrainerGroup

BATCHES = 4
LENT = {"engine__lent": 1, "trainer__batches": BATCHES, "data__eval": None, "runtime__threads": 1}
PROCESSES = {"engine__process": True, "trainer__placement": "process"}


def trained(folder: Path, **changes: Any) -> tuple[list[Any], list[dict[str, Any]], dict[str, Any]]:
    """Of a finished run its events, the records of its batches, and its summary."""
    job = make_job(folder / "job", **{**LENT, **changes})
    assert main(["train", str(job), "data.shuffle=false", "--dir", str(folder / "run"), "--plain"]) == 0
    with RunReader(folder / "run") as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        batches = [row.record for row in reader.metrics.read("batch")]
        return [*reader.events.read()], batches, json.loads((folder / "run/summary.json").read_text())


def test_what_check_says_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, in units of 4 bytes a parameter: 1 each for weights, gradients and an engine, 2 for moments and for the
    weight plane, 1 more for a version on its way to the engine that is not lent, 3 for a checkpoint's copy, behind the
    start. The engine's output layer counts once more, being laid out anew."""
    job = make_job(tmp_path, async__mode="sync", engine__lent=1)
    found = estimate_memory(load_config(TrainConfig, job), CONFIGS["qwen3"](), torch.device("cpu"))
    one, cache = 4 * found.parameters, found.uses["engine: KV cache"]
    engine = one + 4 * len(CHARACTERS) * 32 + 4 * 2 * 32
    assert found.uses["lent engines: weights"] == engine
    assert found.uses["lent engines: KV cache"] == cache
    assert found.slots == 16
    assert dict(found.turns) == {
        "while the trainer's devices are lent": 8 * one + 3 * engine + 2 * cache,
        "while it has them": 9 * one + 2 * engine + cache,
        "at the start, as models are loaded": 6 * one + 3 * engine,
    }
    # On a device those that train leave nothing there, and caches are what both times have room for.
    monkeypatch.setattr("headrace.controller.planning.free_memory.free_bytes", lambda device: 2**34)
    found = estimate_memory(load_config(TrainConfig, job), CONFIGS["qwen3"](), torch.device("cuda"))
    assert found.on_host["trainer: float32 weights and moments, asleep"] == 3 * 2 ** math.ceil(math.log2(one))
    activations, cache = found.uses["engine: activations and logits"], found.uses["engine: KV cache"]
    lent = found.turns["while the trainer's devices are lent"]
    workspaces = 4 * 2**25  # of the lane of all, of its backward passes, and of each engine's graphs
    engines = 3 * engine + 2 * (activations + found.uses["engine: CUDA graphs"]) + 2 * cache
    assert lent == engines + 2 * one + workspaces


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"engine__colocated": True, "async__mode": "sync"}, "engine.lent is 1, and engine.colocated true"),
        ({"rollouts_only": True}, "engine.lent is 1, and rollouts_only"),
        ({"engine__kind": "vllm"}, r"engine.lent is 1, and an engine is a server \(vllm\)"),
        ({"engine__lent": 2}, r"engine.lent is 2, and the trainer has 1 rank\(s\)"),
    ],
)
def test_what_cannot_be_lent_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: dict[str, Any], words: str
) -> None:
    job = make_job(tmp_path / "job", **{"engine__lent": 1, **given})
    assert main(["check", str(job)]) == 2
    assert re.search(words, capsys.readouterr().err.replace("\n", " "))


@pytest.mark.slow
@pytest.mark.cpu
def test_with_processes_of_which_the_lent_one_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is lent for the second time: the trainer waits for nobody who comes back. All is trained on its own
    version."""
    monkeypatch.setattr(LendingRule, "lends", lambda self: True)
    lend, killed = LentEngines.lend, []

    def lent(engines: LentEngines) -> None:
        if not killed:
            victim = child("lent/0")
            killed.append(victim.pid)
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait(30)
        lend(engines)

    monkeypatch.setattr(LentEngines, "lend", lent)
    events, batches, summary = trained(tmp_path, async__mode="sync", **PROCESSES)
    kinds = [event.kind for event in events]
    assert killed
    assert kinds.count("engine_died") == 1
    assert kinds.count("lent") >= 2
    assert [record["batch"] for record in batches] == [*range(BATCHES)]
    assert all(set(record["staleness"]) == {"0"} for record in batches)
    first = next(event.data for event in events if event.kind == "lent")
    assert first["tokens"] > 0
    assert 0 < summary["time"]["lent"] < 1
    assert summary["time"]["busy"]["engine 1 (lent)"] > 0


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize(
    "kills",
    [
        [("serves", "trainer/0"), ("sleeps", "lent/0")],
        pytest.param([("serves", "lent/0"), ("wakes", "trainer/0")], marks=pytest.mark.soak),
    ],
    ids=["trainer, then engine", "engine, then trainer"],
)
def test_whoever_is_killed_while_devices_are_lent_or_on_their_way_back_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: list[tuple[str, str]]
) -> None:
    """The one as the lent engine serves, the other in a later batch, as it is told to sleep, or the trainer to wake,
    before the last group is there."""
    monkeypatch.setattr(LendingRule, "lends", lambda rule: True)
    monkeypatch.setattr(LendingRule, "ends", lambda rule, missing: missing <= 1)
    left, here, batches = [*kills], psutil.Process(), {-1, 0}

    def at(moment: str, batch: int) -> None:
        if not left or moment != left[0][0] or batch in batches:
            return
        batches.add(batch)
        _, name = left.pop(0)
        (victim,) = (each for each in here.children() if name in " ".join(each.cmdline()))
        os.kill(victim.pid, signal.SIGKILL)

    look, sleep, wake, now = Lending._look_at_batch, LentEngines.put_to_sleep, TrainerGroup.wake, -1

    def looked(lending: Lending) -> None:
        nonlocal now
        period = lending._period
        if period is not None:
            now = period.batch
            if period.served_at is not None and period.back is None:
                at("serves", now)
        look(lending)

    async def put_to_sleep(engines: LentEngines, member: Member, seconds: float) -> None:
        at("sleeps", now)
        await sleep(engines, member, seconds)

    async def woken(group: TrainerGroup) -> None:
        at("wakes", now)
        await wake(group)

    monkeypatch.setattr(Lending, "_look_at_batch", looked)
    monkeypatch.setattr(LentEngines, "put_to_sleep", put_to_sleep)
    monkeypatch.setattr(TrainerGroup, "wake", woken)
    job = {"async__mode": "sync", "record__journal": "all", "checkpoint__every": 2}
    long = {"rollout__prompts_per_batch": 4, "rollout__sampling": {"max_new_tokens": 64}}
    events, records, _ = trained(tmp_path, **job, **long, **PROCESSES)
    kinds = [event.kind for event in events]
    assert not left
    assert (kinds.count("engine_died"), kinds.count("trainer_lost"), kinds.count("went_back")) == (1, 1, 1)
    assert [record["batch"] for record in records] == [*range(BATCHES)]
    assert all(set(record["staleness"]) == {"0"} for record in records)
    assert max(event.data["early_s"] for event in events if event.kind == "lent") > 0
    require_nothing_lost(tmp_path / "run", 0)
