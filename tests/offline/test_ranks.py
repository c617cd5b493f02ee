"""Offline trainers with several ranks: the same as with one, through checkpoints, stops and losses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import yaml
from controller_jobs import make_model
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from headrace.config import ConfigError, DPOConfig, RMConfig, SFTConfig
from headrace.controller.stopping import StopFlag
from headrace.models.packing import PackRow
from headrace.observe.offline.listeners import NOBODY, OfflineListeners
from headrace.observe.offline.run_record import OfflineWatcher
from headrace.offline.loop import OfflineResult, RankLost
from headrace.offline.pairs import run_dpo, run_rm
from headrace.offline.ranks.started import check_world
from headrace.offline.sft import run_sft
from headrace.offline.units import Unit, parts_of
from headrace.runtime.process.joined import Joined
from headrace.store import RunReader

RUNS: dict[str, Any] = {"sft": (SFTConfig, run_sft), "rm": (RMConfig, run_rm), "dpo": (DPOConfig, run_dpo)}
AS_SGD = {"lr": 1e3, "betas": [0.5, 0.9], "eps": 1e4, "weight_decay": 1e-6}
"""AdamW divides by sqrt(v) + eps: with eps far above all gradients a step is lr / eps times their momentum."""
STEPS = 4
TWO_CUT_UP = {"dp": 2, "zero": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("base") / "model")


def settings(folder: Path, model: Path, name: str, layout: object = "d1", **trainer: object) -> dict[str, Any]:
    """Rows of 8 to 40 tokens, of which one micro-batch takes 40; five units a batch, of sixteen."""
    data = folder / f"{name}.jsonl"
    with data.open("w") as file:
        for a in range(4):
            for b in range(4):
                answer = f"{a + b}" * (1 + b)
                row = {"response": answer} if name == "sft" else {"chosen": answer, "rejected": "b" * (a + 1)}
                file.write(json.dumps({"prompt": f"{a}+{b}=" + "x" * (3 * a * b), **row}) + "\n")
    size = "samples_per_batch" if name == "sft" else "pairs_per_batch"
    own = {"optimizer": AS_SGD, "max_grad_norm": 1e6, "max_tokens_per_microbatch": 40, "steps": STEPS}
    return {
        "model": {"path": str(model), "device": "cpu"},
        "data": {"train": str(data), "eval": str(data)},
        "trainer": {size: 5, **own, "layout": layout, **trainer},
        "checkpoint": {"every": 2},
        "runtime": {"threads": 2},
    }


def train(
    name: str, config: dict[str, Any], out: Path, *, begin: Any = "new", until: int = STEPS, listeners: Any = NOBODY
) -> OfflineResult:
    """Told to stop after `until` steps."""
    kind, run = RUNS[name]
    stop = StopFlag()

    def report(step: int, loss: float, rate: float) -> None:
        stop.requested = step == until < STEPS

    own = {"begin": begin, "report": report, "now": time.monotonic, "stop": stop, "listeners": listeners}
    result: OfflineResult = run(kind.model_validate(config), out, **own)
    return result


def told(folder: Path) -> list[float]:
    """Of each step, and of the held-out rows before and after: all that is measured."""
    with RunReader(folder) as reader:
        run = OfflineWatcher(reader).read()
    assert [each.step for each in run.steps] == [*range(1, STEPS + 1)]
    assert [each.step for each in run.evaluations] == [0, STEPS]
    every = [asdict(each.measured) for each in (*run.steps, *run.evaluations)]
    return [value for each in every for value in each.values() if value is not None]


def same(one: Path, other: Path) -> None:
    """Losses, held-out rows and weights, to float32's rounding of sums."""
    assert told(other) == pytest.approx(told(one), rel=2e-6, abs=1e-6)
    weights, found = (load_file(folder / "model" / "model.safetensors") for folder in (one, other))
    assert found.keys() == weights.keys()
    for name, tensor in weights.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.cpu
def test_a_rank_that_dies_ends_all_and_the_run_goes_on_in_another_layout(tmp_path: Path, model: Path) -> None:
    train("sft", settings(tmp_path, model, "sft"), tmp_path / "one")
    config, folder = settings(tmp_path, model, "sft", TWO_CUT_UP), tmp_path / "ranks"
    with pytest.raises(RankLost, match=r"^rank/1 is lost: its process ended with signal SIGKILL .* --resume: .*check"):
        train("sft", config, folder, listeners=OfflineListeners(checkpoint=kill_second))
    assert processes() == []
    assert sorted(path.name for path in (folder / "checkpoint").glob("trainer-*")) == [
        f"trainer-{rank}-of-2.safetensors" for rank in range(2)
    ]
    config["trainer"]["layout"] = "t2"
    assert train("sft", config, folder, begin="resume").status == "finished"
    same(tmp_path / "one", folder)


def kill_second(step: int, path: Path) -> None:
    (rank,) = [process for process in processes() if "rank/1" in " ".join(process.cmdline())]
    rank.kill()


def processes() -> list[psutil.Process]:
    """Of ranks of this one."""
    return [each for each in psutil.Process().children() if "rank/" in " ".join(each.cmdline())]


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize(("name", "layout", "until"), [("dpo", "p2", STEPS), ("rm", "t2", 1)])
def test_the_two_of_a_pair_are_one_ranks(tmp_path: Path, model: Path, name: str, layout: object, until: int) -> None:
    """One is told to stop, and goes on in another layout."""
    train(name, settings(tmp_path, model, name), tmp_path / "one")
    result = train(name, settings(tmp_path, model, name, layout), tmp_path / "ranks", until=until)
    assert result.steps == until
    if until < STEPS:
        train(name, settings(tmp_path, model, name, TWO_CUT_UP), tmp_path / "ranks", begin="resume")
    same(tmp_path / "one", tmp_path / "ranks")


TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize(
    ("by", "more", "logs"),
    [
        (TORCHRUN, [], ["rank-0.log"]),
        pytest.param(
            *([], ["runtime.kind=ray"], ["rank-0.log", "rank-1.log", "ray.log"]),
            marks=pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'headrace[cluster]'"),
        ),
    ],
    ids=["torchrun", "Ray"],
)
def test_others_have_the_ranks(tmp_path: Path, model: Path, by: list[str], more: list[str], logs: list[str]) -> None:
    train("sft", settings(tmp_path, model, "sft"), tmp_path / "one")
    job, folder = tmp_path / "job.yaml", tmp_path / "ranks"
    job.write_text(yaml.safe_dump(settings(tmp_path, model, "sft", TWO_CUT_UP)))
    command = [sys.executable, "-m", *by, "headrace", "sft", str(job), "--dir", str(folder), "--plain", *more]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("sft step 4: loss") == 1, "the first rank alone tells"
    assert not (folder / "ranks.json").exists()
    assert sorted(path.name for path in (folder / "logs").iterdir()) == logs
    same(tmp_path / "one", folder)


@pytest.mark.parametrize(
    ("layout", "world", "words"),
    [
        (
            "d2",
            Joined(0, 3, 3, 1),
            r"trainer\.layout is d2, of 2 rank\(s\), and torchrun began 3; use --nproc-per-node 2",
        ),
        (
            "d1",
            Joined(0, 2, 2, 1),
            r"trainer\.layout is d1, of 1 rank\(s\), and torchrun began 2; .* trainer.layout=d2",
        ),
        ("d4", Joined(0, 4, 2, 1), "torchrun began 4 ranks, 2 of them on this machine, and all have to be on one"),
        ("d2", Joined(1, 2, 2, 1), "this is rank 1 of 2, and another than the first has no run"),
    ],
)
def test_a_world_that_the_layout_does_not_match_is_refused(layout: str, world: Joined, words: str) -> None:
    config = SFTConfig.model_validate({"model": {"path": "m"}, "data": {"train": "d"}, "trainer": {"layout": layout}})
    with pytest.raises(ConfigError, match=words):
        check_world(config, world)


def test_ray_and_torchrun_are_not_both_taken() -> None:
    config = {"model": {"path": "m"}, "data": {"train": "d"}, "runtime": {"kind": "ray"}}
    with pytest.raises(ConfigError, match=r"runtime\.kind is ray, and torchrun began this"):
        check_world(SFTConfig.model_validate(config), Joined(0, 1, 1, 1))
    with pytest.raises(ValueError, match="address is 'auto', and kind inline; set kind: ray"):
        SFTConfig.model_validate({**config, "runtime": {"address": "auto"}})


def test_a_world_that_it_matches_is_taken() -> None:
    told = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": "2"}
    assert Joined.of(told) == Joined(1, 2, 2, os.getppid())
    assert Joined.of({name: value for name, value in told.items() if name != "RANK"}) is None
    config = {"model": {"path": "m"}, "data": {"train": "d"}, "trainer": {"layout": "t2"}}
    check_world(SFTConfig.model_validate(config), Joined(0, 2, 2, 1))


@pytest.mark.parametrize(
    ("name", "layout", "words"),
    [
        ("sft", "t3", "trainer.layout has tp 3, and the model has 4 attention heads; use a tp of 1, 2"),
        ("dpo", "p3", "trainer.layout has pp 3, and the model has 2 layers; use a pp of 2 at most"),
        ("rm", "t4", "trainer.layout has tp 4, and the model has 2 key and value heads; use a tp of 1, 2"),
    ],
)
def test_a_layout_that_the_model_does_not_divide_into_is_refused_before_anything_begins(
    tmp_path: Path, model: Path, name: str, layout: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        train(name, settings(tmp_path, model, name, layout), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@given(
    sizes=st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=2), min_size=1, max_size=12),
    parts=st.integers(1, 4),
    most=st.integers(1, 60),
    joint=st.booleans(),
)
def test_each_unit_is_whole_and_one_parts(sizes: list[list[int]], parts: int, most: int, joint: bool) -> None:
    units: list[Unit] = [[PackRow(np.zeros(n, np.int32), np.ones(n, np.bool_)) for n in unit] for unit in sizes]
    found = parts_of(units, parts, most, joint=joint)
    assert len(found) == parts
    assert sorted(place for part in found for micro in part for place in micro) == [*range(len(units))]
    for micro in (micro for part in found for micro in part):
        assert len(micro) <= 1 or sum(sum(sizes[place]) for place in micro) <= most
    if joint:
        assert len({len(part) for part in found}) == 1, "all make as many passes"
    else:
        assert all(micro for part in found for micro in part)
