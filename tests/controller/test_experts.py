"""Runs of a model with experts."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from controller_jobs import make_job, make_model, start
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from headrace.cli.main import main
from headrace.config import TrainConfig, load_config
from headrace.controller.planning.plan import make_plan
from headrace.controller.planning.table_size import largest_group
from headrace.experience.records.codec import decode_group
from headrace.experience.sample import Sample
from headrace.store import RunReader

pytestmark = pytest.mark.cpu
REWARD = "def score(response, row):\n    return sum(c in 'abcdefghijklm' for c in response) / 8\n"


def job(folder: Path, **changes: Any) -> Path:
    """Of a tiny Qwen3-MoE; the reward is the share of letters from a to m, at first one in seven."""
    usual = {"rollout__samples_per_prompt": 8, "rollout__prompts_per_batch": 4, "async__mode": "sync"}
    made = make_job(folder / "job", **{**usual, "trainer__optimizer": {"lr": 1e-2}, **changes})
    make_model(folder / "job" / "model", "qwen3_moe")
    (folder / "job" / "reward.py").write_text(REWARD)
    return made


def records(run: Path) -> list[dict[str, Any]]:
    with RunReader(run) as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        return [row.record for row in reader.metrics.read("batch")]


@pytest.mark.slow
def test_a_run_learns_and_leaves_a_model_that_others_read(tmp_path: Path) -> None:
    """Engine and trainer agree on log-probs in every batch; the saved model names each expert, as Qwen3-MoE does."""
    path = job(tmp_path, trainer__batches=12)
    assert main(["check", str(path)]) == 0
    assert main(["train", str(path), "--dir", str(tmp_path / "run"), "--plain"]) == 0
    batches = records(tmp_path / "run")
    assert batches[-1]["reward_mean"] > 2 * batches[0]["reward_mean"]
    assert all(batch["mismatch_mean_abs"] < 1e-6 and batch["mismatch_max_abs"] < 1e-4 for batch in batches)
    with (
        safe_open(tmp_path / "job" / "model" / "model.safetensors", "np") as begun,
        safe_open(tmp_path / "run" / "checkpoints" / "step_12" / "model" / "model.safetensors", "np") as ended,
    ):
        assert set(ended.keys()) == set(begun.keys())
        name = "model.layers.1.mlp.experts.5.down_proj.weight"
        assert ended.get_tensor(name).shape == begun.get_tensor(name).shape
        assert abs(ended.get_tensor(name) - begun.get_tensor(name)).max() > 1e-3


def tie_experts(model: Path) -> None:
    """Of every three experts one router row, but for a part in a thousand: which two of them are chosen is a matter of
    rounding to bfloat16."""
    weights = load_file(model / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith("mlp.gate.weight"):
            for first in range(0, len(weight) - 2, 3):
                for place in range(3):
                    weight[first + place] = weight[first] * (1 + 1e-3 * place)
        elif "mlp.experts" in name:
            weight *= 20  # else it would not matter where a token goes
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


def samples(run: Path) -> list[Sample]:
    """All that were finished."""
    with RunReader(run) as reader:
        return [sample for group in reader.journalled() for sample in decode_group(group.payload).samples]


def final(run: Path, batches: int) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"step_{batches}" / "model" / "model.safetensors")


REPLAY = {"algorithm__router_replay": True, "engine__dtype": "bfloat16", "record__journal": "all"}
SHORT = {"trainer__batches": 3, "checkpoint__every": 1, "rollout__samples_per_prompt": 4}


@pytest.mark.slow
def test_replay_agrees_with_an_engine_that_rounds_in_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bfloat16 engine and a float32 trainer. Each token that counts comes with its experts, through the codec of what
    crosses between processes, and the journal; a run on the record of a run is that run bit for bit."""
    monkeypatch.setenv("HEADRACE_COPYING", "1")
    gaps = {}
    for name, changes in (
        ("without", {"algorithm__router_replay": False}),
        ("with", {"algorithm__epochs_per_batch": 2}),
    ):
        path = job(tmp_path / name, **{**REPLAY, **SHORT, **changes})
        tie_experts(tmp_path / name / "job" / "model")
        assert main(["train", str(path), "--dir", str(tmp_path / name / "run"), "--plain"]) == 0
        gaps[name] = records(tmp_path / name / "run")[0]["mismatch_mean_abs"]
    assert 10 * gaps["with"] < gaps["without"]
    found = samples(tmp_path / "with" / "run")
    for sample in found:
        assert sample.experts is not None
        assert sample.experts.shape == (len(sample) - 1, 2, 2)
        assert sample.unrouted == 0
    assert any((sample.experts != found[0].experts[0]).any() for sample in found if sample.experts is not None)
    assert all(sample.experts is None for sample in samples(tmp_path / "without" / "run"))

    recorded = f"data.rollouts={tmp_path / 'with' / 'run'}"
    path = tmp_path / "with" / "job" / "grpo.yaml"
    assert main(["train", str(path), recorded, "--dir", str(tmp_path / "again"), "--plain"]) == 0
    first, again = final(tmp_path / "with" / "run", 3), final(tmp_path / "again", 3)
    assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_with_the_experts_of_its_journal(tmp_path: Path) -> None:
    path = job(tmp_path, **{**REPLAY, **SHORT, "trainer__batches": 5, "checkpoint__every": 4})
    run = tmp_path / "run"
    process = start("train", str(path), "--dir", str(run), "--plain")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("batch 3/5"):
            break
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert main(["train", str(path), "--dir", str(run), "--resume", "--plain"]) == 0
    assert len(records(run)) >= 5
    assert all(sample.unrouted == 0 and sample.experts is not None for sample in samples(run))


@pytest.mark.slow
def test_ranks_that_share_experts_train_and_publish_what_one_does(tmp_path: Path) -> None:
    """Two batches, the second of which is sampled with what the ranks gathered and published: as good as an SGD, so
    that weights are as near as sums of float32."""
    sgd = {
        "trainer__optimizer": {"betas": [0.0, 0.0], "eps": 1e4, "lr": 1e4},
        "trainer__max_grad_norm": 1e6,
        "trainer__batches": 2,
        "algorithm__router_replay": True,
    }
    shared = {"trainer__placement": "process", "trainer__layout": "d2e2"}
    found = {}
    for name, changes in (("one", {}), ("shared", shared)):
        path = job(tmp_path / name, **{**SHORT, **sgd, **changes})
        assert main(["train", str(path), "data.shuffle=false", "--dir", str(tmp_path / name / "run"), "--plain"]) == 0
        found[name] = records(tmp_path / name / "run"), final(tmp_path / name / "run", 2)
    (one, weights), (other, theirs) = found["one"], found["shared"]
    assert one[0]["loss"] == pytest.approx(other[0]["loss"], abs=1e-6)
    assert one[0]["grad_norm"] == pytest.approx(other[0]["grad_norm"], rel=1e-5)
    assert all(batch["mismatch_max_abs"] < 1e-4 for batch in other)
    begun = load_file(tmp_path / "one" / "job" / "model" / "model.safetensors")
    moved = max(float((weights[name] - begun[name]).abs().max()) for name in begun)
    assert moved > 1e-4
    assert theirs.keys() == weights.keys() == begun.keys()
    assert all(float((theirs[name] - weights[name]).abs().max()) <= 1e-3 * moved for name in weights)


@pytest.mark.slow
def test_a_record_without_experts_is_not_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = job(tmp_path, **{**SHORT, "trainer__batches": 1, "record__journal": "all"})
    assert main(["train", str(path), "--dir", str(tmp_path / "run"), "--plain"]) == 0
    replay = (f"data.rollouts={tmp_path / 'run'}", "algorithm.router_replay=true")
    assert main(["check", str(path), *replay]) == 2
    assert "algorithm.router_replay (the record has no experts" in capsys.readouterr().err


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no experts for each tensor rank": (
        {"trainer__placement": "process", "trainer__layout": "t3"},
        "trainer.layout has tp 3, and tensor ranks share the 8 experts of a layer; use a tp of 1, 2, 4, 8",
    ),
    "no experts for each": (
        {"trainer__placement": "process", "trainer__layout": "d3e3"},
        "trainer.layout has ep 3: each of so many ranks has as many of the 8 experts of a layer, whose matrices of 32 "
        "and 32 rows are cut up among 1 rank(s) that have the same ones; use an ep of 1\n",
    ),
    "no ranks for each": (
        {"trainer__placement": "process", "trainer__layout": "d4e3"},
        "ep is 3, and does not divide dp x cp, 4; use 1, 2, 4",
    ),
    "no experts for each of a critic's": (
        {"algorithm__recipe": "ppo", "critic__placement": "process", "critic__layout": "d3e3"},
        "critic.layout has ep 3: each of so many ranks has as many of the 8 experts of a layer",
    ),
    "replay from a server": (
        {"engine__kind": "sglang", "algorithm__router_replay": True},
        "algorithm.router_replay is true, and engine.kind is sglang",
    ),
    "SGLang from a folder": (
        {"engine__kind": "sglang", "weights__transport": "disk"},
        "engine.kind is sglang, weights.transport is disk, and the model's layers have experts",
    ),
}


@pytest.mark.parametrize(("changes", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], said: str
) -> None:
    path = job(tmp_path, **changes)
    assert main(["check", str(path)]) == 2
    assert said in capsys.readouterr().err


def test_of_a_model_without_experts_nothing_of_them_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_job(tmp_path / "job", algorithm__router_replay=True)
    assert main(["check", str(path)]) == 2
    assert "algorithm.router_replay is true, and the model is of type qwen3, which has no" in capsys.readouterr().err
    path = make_job(tmp_path / "shared", trainer__placement="process", trainer__layout="d2e2")
    assert main(["check", str(path)]) == 2
    assert "trainer.layout has ep 2, and the model, of type qwen3, has no experts" in capsys.readouterr().err


def test_what_experts_take_counts_in_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """96 tokens of context, of two layers two experts of a byte each; 8 samples a group."""
    path = job(tmp_path, algorithm__router_replay=True)
    assert main(["check", str(path)]) == 0
    assert "experience table: experts that tokens were routed to, at most" in capsys.readouterr().out
    plain, replay = (
        largest_group(make_plan(load_config(TrainConfig, path, [f"algorithm.router_replay={wanted}"])))
        for wanted in ("false", "true")
    )
    assert replay - plain == 8 * 96 * 2 * 2
