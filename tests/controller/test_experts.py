"""Runs of a model with experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from controller_jobs import make_job, make_model
from safetensors import safe_open

from headrace.cli.main import main
from headrace.store import RunReader

pytestmark = pytest.mark.cpu
REWARD = "def score(response, row):\n    return sum(c in 'abcdefghijklm' for c in response) / 8\n"


def job(folder: Path, **changes: Any) -> Path:
    """Of a tiny Qwen3-MoE; the reward is the share of letters from a to m, at first one in seven."""
    made = make_job(
        folder / "job",
        trainer__optimizer={"lr": 1e-2},
        rollout__samples_per_prompt=8,
        rollout__prompts_per_batch=4,
        async__mode="sync",
        **changes,
    )
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


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "tp": (
        {"trainer__placement": "process", "trainer__layout": "t2"},
        "trainer.layout has tp 2, and the model's layers have experts",
    ),
    "a server": ({"engine__kind": "vllm"}, "engine.kind is vllm, and the model's layers have experts"),
}


@pytest.mark.parametrize(("changes", "said"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_there_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], said: str
) -> None:
    path = job(tmp_path, **changes)
    assert main(["check", str(path)]) == 2
    assert said in capsys.readouterr().err
