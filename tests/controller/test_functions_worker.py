"""Runs whose own stages, shaping, KL controller and advantages of tokens are in a process of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
import torch
from controller_jobs import make_job, make_model
from safetensors.torch import load_file

from headrace.algorithms.pieces import PieceError
from headrace.config import ConfigError, TrainConfig, load_config
from headrace.config.reading.unused_keys import ineffective
from headrace.controller.planning.describe import describe_plan
from headrace.controller.planning.plan import make_plan
from headrace.controller.train import Ended, train
from headrace.store import RunReader

BATCHES, KILLS = 30, 2
SOURCE = """
import os
import numpy as np

def note():
    with open(__file__ + ".pids", "a") as file:
        file.write(f"{os.getpid()}\\n")

def bonus(tokens, loss_mask, reward):
    note()
    return {"bonus": np.where(loss_mask, reward * 0.1, 0.0)}

def place(bonus, group, episode):
    assert len({one.key for one in group}) == 1
    means = [float(one.mean()) for one in bonus]
    return {"place": [sorted(means).index(mean) * 0.1 for mean in means]}

def shaping(rewards, lengths, group_index):
    return rewards - 0.01 * lengths

def controller(coefficient, kl, samples):
    note()
    return coefficient * (1.1 if kl > 0.001 else 0.9)

def loss(logprobs, proximal, advantages, mask, sample_index, *, bonus, place):
    from headrace.algorithms.losses import reinforce
    return reinforce(logprobs, advantages + bonus + place, mask)

def raises(tokens):
    raise KeyError("my fault")

def ends(tokens):
    os._exit(3)
"""


def job(folder: Path, placement: str, **changes: object) -> Path:
    """PPO with a KL in the reward that the user's controller moves, and two stages whose columns the loss reads."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "own.py").write_text(SOURCE)
    own = f"{folder}/own.py"
    algorithm = {
        "advantage": "gae",
        "loss": f"{own}:loss",
        "loss_reads": ["bonus", "place"],
        "kl": {"coefficient": 0.1, "place": "reward", "estimator": "k1", "controller": f"{own}:controller"},
        "shaping": {"function": f"{own}:shaping"},
        "stages": [
            {
                "name": "bonus",
                "function": f"{own}:bonus",
                "reads": ["tokens", "loss_mask", "reward"],
                "writes": ["bonus"],
            },
            {
                "name": "place",
                "function": f"{own}:place",
                "reads": ["bonus", "group", "episode"],
                "writes": ["place"],
                "unit": "group",
            },
        ],
    }
    settings = {
        "algorithm": {**algorithm, **changes.pop("algorithm", {})},  # type: ignore[dict-item]
        "reference__model": str(make_model(folder / "other", "llama")),
        "functions__placement": placement,
        "rollout__filters": [],
        "data__eval": None,
        "trainer__batches": 3,
        **changes,
    }
    return make_job(folder, **settings)


def run(path: Path) -> Ended:
    return asyncio.run(train(make_plan(load_config(TrainConfig, path)), path.parent / "run", "new"))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    newest = max((folder / "run" / "checkpoints").iterdir(), key=lambda path: int(path.name.partition("_")[2]))
    return load_file(newest / "model" / "model.safetensors")


def pids(folder: Path) -> set[int]:
    return {int(line) for line in (folder / "own.py.pids").read_text().splitlines()}


def kinds_of(folder: Path) -> Counter[str]:
    """The kinds of a finished run's events: the law holds in it."""
    with RunReader(folder) as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        return Counter(event.kind for event in reader.events.read())


@pytest.mark.slow
def test_a_process_computes_what_a_lane_does_to_the_last_bit(tmp_path: Path) -> None:
    own, apart = (job(tmp_path / placement, placement, async__mode="sync") for placement in ("own", "process"))
    of_lane, of_process = run(own), run(apart)
    assert pids(tmp_path / "own") == {os.getpid()}
    assert len(pids(tmp_path / "process") - {os.getpid()}) == 1
    coefficients = [batch.kl_coefficient for batch in of_lane.record.batches]
    assert [batch.kl_coefficient for batch in of_process.record.batches] == coefficients
    assert len(set(coefficients)) == 3
    expected = weights(tmp_path / "own")
    found = weights(tmp_path / "process")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert not kinds_of(tmp_path / "process" / "run")["worker_lost"]


def batches(folder: Path) -> int:
    with RunReader(folder) as reader:
        return len(reader.metrics.read("batch"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": {"kl": {"coefficient": 0.1, "place": "reward"}}},
        pytest.param(
            {"critic": {"updates_per_batch": 2}, "algorithm": {"updates_per_batch": 2}}, marks=pytest.mark.soak
        ),
    ],
    ids=["streaming", "whole batches"],
)
def test_a_worker_that_is_killed_in_mid_run_costs_no_group(tmp_path: Path, changes: dict[str, object]) -> None:
    path = job(tmp_path, "process", trainer__batches=BATCHES, trainer__epochs=8, data__eval=None, **changes)
    folder, killed = tmp_path / "run", list[int]()

    def kill() -> None:
        end = time.monotonic() + 90
        while time.monotonic() < end and len(killed) < KILLS:
            time.sleep(0.05)
            if not (folder / "run.db").exists() or batches(folder) < 3 * (len(killed) + 1):
                continue
            for each in psutil.Process().children():
                if "functions/0" in " ".join(each.cmdline()) and each.pid not in killed:
                    os.kill(each.pid, signal.SIGKILL)
                    killed.append(each.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    run(path)
    killer.join()
    assert len(killed) == KILLS
    kinds = kinds_of(folder)
    assert kinds["worker_lost"] == KILLS
    with RunReader(folder) as reader:
        counts = reader.counts()
        assert counts.trained == BATCHES * 2, "each group was trained once"
        assert not counts.dropped
        assert [row.number for row in reader.metrics.read("batch")] == list(range(1, BATCHES + 1))
    assert len(pids(tmp_path)) > KILLS, "the worker came back each time"


def test_check_says_where_functions_are_and_what_it_means(tmp_path: Path) -> None:
    said = {
        placement: describe_plan(make_plan(load_config(TrainConfig, job(tmp_path / placement, placement))))
        for placement in ("own", "process")
    }
    for stage in ("bonus", "place", "advantages"):
        assert f"  {stage:<16} compute lane 'functions'\n" in said["own"]
        assert f"  {stage:<16} the functions' process: 1 CPU thread\n" in said["process"]
    assert "nothing global in them is shared" in said["process"]
    assert "nothing global" not in said["own"]


@pytest.mark.slow
def test_what_a_function_raises_there_is_one_clear_line_here(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SOURCE)
    stages = [{"name": "raises", "function": f"{tmp_path}/own.py:raises", "reads": ["tokens"], "writes": ["x"]}]
    changes = {"algorithm__stages": stages, "functions__placement": "process", "rollout__filters": []}
    said = rf"^stage raises raised KeyError: 'my fault' \(at {tmp_path}/own\.py:\d+\)$"
    with pytest.raises(PieceError, match=said):
        run(make_job(tmp_path, trainer__batches=2, data__eval=None, **changes))


@pytest.mark.parametrize(
    ("algorithm", "calls"),
    [
        ({}, False),
        ({"advantage": "opo"}, False),
        ({"recipe": "ppo"}, True),
        ({"advantage": "reinforce_plus_plus_baseline"}, True),
        ({"kl": {"coefficient": 0.1}}, False),
        ({"kl": {"coefficient": 0.1, "place": "reward"}}, True),
        ({"kl": {"coefficient": 0.1, "controller": "own.py:controller"}}, True),
        ({"shaping": {"function": "own.py:shaping"}}, True),
        ({"advantage": "distillation"}, False),
        ({"stages": [{"name": "x", "function": "own.py:x", "reads": ["reward"], "writes": ["x"]}]}, True),
    ],
)
def test_a_process_that_would_compute_nothing_is_not_started(algorithm: dict[str, object], calls: bool) -> None:
    teacher = {"teacher": {"model": "a"}} if algorithm.get("advantage") == "distillation" else {}
    given = {"model": {"path": "m"}, "data": {"train": "d"}, "reward": {"function": "exact_match"}, **teacher}
    config = TrainConfig.model_validate({**given, "algorithm": algorithm, "functions": {"placement": "process"}})
    assert config.functions_process is calls
    told = [line for line in ineffective(config) if line.startswith("functions.placement has no effect")]
    assert len(told) == (not calls)


@pytest.mark.parametrize("key", ["stages", "advantage"])
def test_a_function_that_is_an_object_of_this_process_is_refused(tmp_path: Path, key: str) -> None:
    object_ = "<memory>:mine"
    stage = {"name": "mine", "function": object_, "reads": ["tokens"], "writes": ["x"]}
    changes = {"algorithm": {"stages": [stage]} if key == "stages" else {"advantage": object_}}
    path = make_job(tmp_path, functions__placement="process", **changes)
    with pytest.raises(ConfigError, match=r"mine was given in Python, and no file defines it"):
        make_plan(load_config(TrainConfig, path))
