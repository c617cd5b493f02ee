"""Every recipe: it runs end to end on a real model, and its loss falls on a batch that it sees again and again."""

import asyncio
import typing
from pathlib import Path

import numpy as np
import pytest
import torch
from controller_jobs import make_job, make_model

from headrace.algorithms.policy_loss import PolicyLoss
from headrace.config import ConfigError, TrainConfig, load_config
from headrace.config.algorithm import AlgorithmConfig, RecipeName
from headrace.config.trainer import OptimizerConfig, TrainerConfig
from headrace.controller.plan import make_plan
from headrace.controller.policy_objective import PolicyObjective, policy_columns
from headrace.controller.train import Ended, train
from headrace.models.loading import load_causal_lm
from headrace.models.packing import PackRow, pack
from headrace.training.trainer import HFTrainer

RECIPES = typing.get_args(RecipeName)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("recipes") / "model")


def run(folder: Path, begin: str = "new", **changes: object) -> Ended:
    job = make_job(folder, **changes)
    config = load_config(TrainConfig, job)
    return asyncio.run(train(make_plan(config), folder / "run", begin))  # type: ignore[arg-type]


@pytest.mark.parametrize("recipe", RECIPES)
def test_it_runs(tmp_path: Path, model: Path, recipe: str) -> None:
    settings = {"teacher__model": str(model)} if recipe == "opd" else {}
    ended = run(tmp_path, algorithm__recipe=recipe, trainer__batches=3, rollout__filters=[], **settings)
    assert ended.status == "finished"
    assert [batch.batch for batch in ended.record.batches] == [0, 1, 2]
    assert not any(batch.skipped for batch in ended.record.batches)
    assert all(np.isfinite(batch.loss) and batch.trained_tokens > 0 for batch in ended.record.batches)


@pytest.mark.parametrize("recipe", RECIPES)
def test_its_loss_falls_on_a_fixed_batch(model: Path, recipe: str) -> None:
    algorithm = AlgorithmConfig(recipe=recipe)
    objective = PolicyObjective(algorithm, PolicyLoss(algorithm))
    trainer = HFTrainer(
        load_causal_lm(model, dtype=torch.float32, device="cpu"),
        config=TrainerConfig(optimizer=OptimizerConfig(lr=1e-4)),
        loss=objective,
        total_steps=8,
    )
    generator = np.random.default_rng(0)
    rows = []
    for sample in range(6):
        tokens = generator.integers(2, 60, 10 + sample)
        advantage = 1.0 if sample % 2 else -1.0
        columns = {"advantages": advantage, "logprobs": 0.0}
        rows.append(PackRow(tokens, np.arange(len(tokens)) >= 4, columns))
    micro = pack(rows)
    start = trainer.logprobs(micro)
    micro.columns.update({"logprobs": start, "proximal": start})
    if "reference" in policy_columns(algorithm):
        micro.columns["reference"] = start
    objective.prepare([micro])
    losses = []
    for _ in range(8):
        trainer.accumulate(micro)
        losses.append(trainer.step().loss)
    if recipe == "cispo":
        # Its weights are constants of each step, and grow with the policy: at those of the first, all 1, it falls.
        losses = [float(-(micro.columns["advantages"] * lp).sum()) for lp in (start, trainer.logprobs(micro))]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm__recipe": "ppo", "algorithm__updates_per_batch": 2, "critic__warmup_batches": 1},
        {"algorithm__updates_per_batch": 2, "algorithm__proximal": "loglinear"},
        {"algorithm__kl": {"coefficient": 0.1}, "reference__placement": "hybrid", "algorithm__entropy": 0.01},
        {"algorithm__kl": {"coefficient": 0.1, "place": "reward"}, "algorithm__advantage": "opo"},
        {"algorithm__recipe": "ppo", "async__mode": "sync"},
        {"algorithm__recipe": "ppo", "model__dtype": "bfloat16"},
        {"algorithm__shaping": {"clip": [0, 0.5], "overlong_buffer": 4, "length_weight": 0.5}},
    ],
    ids=lambda changes: ",".join(f"{key}={value}" for key, value in changes.items()),
)
def test_pieces_go_together(tmp_path: Path, changes: dict[str, object]) -> None:
    ended = run(tmp_path, trainer__batches=3, rollout__filters=[], **changes)
    assert ended.status == "finished"
    warm = int(changes.get("critic__warmup_batches", 0))
    assert [batch.skipped for batch in ended.record.batches] == [True] * warm + [False] * (3 - warm)


def test_pieces_of_the_users_own(tmp_path: Path) -> None:
    make_job(tmp_path)
    (tmp_path / "mine.py").write_text(
        "def loss(logprobs, proximal, advantages, mask, sample_index):\n"
        "    from headrace.algorithms.losses import reinforce\n"
        "    return reinforce(logprobs, advantages, mask)\n"
        "def advantage(data):\n"
        "    return data.rewards - 0.5\n"
    )
    pieces = {"loss": f"{tmp_path}/mine.py:loss", "advantage": f"{tmp_path}/mine.py:advantage"}
    assert run(tmp_path, algorithm=pieces, trainer__batches=2).status == "finished"
    with pytest.raises(ConfigError, match=r"algorithm\.loss is .*mine\.py:nothing"):
        run(tmp_path / "b", algorithm={"loss": f"{tmp_path}/mine.py:nothing"})


def test_distillation_without_a_teacher_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs teacher\.model"):
        run(tmp_path, algorithm__recipe="opd")
