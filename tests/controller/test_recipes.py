"""Every recipe: it runs end to end on a real model, and its loss falls on a batch that it sees again and again."""

import asyncio
import itertools
import json
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from controller_jobs import make_job, make_model

from headrace.algorithms.policy_loss import PolicyLoss
from headrace.config import ConfigError, DPOConfig, RMConfig, SFTConfig, TrainConfig, load_config
from headrace.config.algorithm import AlgorithmConfig, RecipeName
from headrace.config.trainer import OptimizerConfig, TrainerConfig
from headrace.controller.planning.plan import make_plan
from headrace.controller.train import Ended, train
from headrace.models.loading import load_causal_lm, load_value_model
from headrace.models.packing import PackRow, pack
from headrace.models.values import token_values
from headrace.offline.pairs import run_dpo, run_rm
from headrace.offline.sft import run_sft
from headrace.training.objective import PolicyObjective, ValueObjective, policy_columns, prepare_batch
from headrace.training.trainer import HFTrainer

RECIPES = typing.get_args(RecipeName)
EXAMPLES = Path(__file__).parents[2] / "examples" / "recipes"
PAIR = {"chosen": "AB", "rejected": "b"}
OFFLINE: dict[str, tuple[Any, Any, str, dict[str, str]]] = {
    "sft": (SFTConfig, run_sft, "samples_per_batch", {"response": "AB"}),
    "rm": (RMConfig, run_rm, "pairs_per_batch", PAIR),
    "dpo": (DPOConfig, run_dpo, "pairs_per_batch", PAIR),
}
"""The config, the trainer, the key of its batch's size, and what a line of data has beside the prompt."""
HALF_END = {"rollout__sampling__stop_token_ids": list(range(2, 12))}
"""Of responses that chance draws from 74 tokens about so many end by themselves."""


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
    objective = PolicyObjective(algorithm, PolicyLoss(algorithm, max_length=20))
    prepare = prepare_batch(algorithm)
    trainer = HFTrainer(
        load_causal_lm(model, dtype=torch.float32, device="cpu"),
        config=TrainerConfig(optimizer=OptimizerConfig(lr=3e-3 if recipe == "cispo" else 1e-4)),
        loss=objective,
        total_steps=60,
    )
    generator = np.random.default_rng(0)
    rows = []
    for sample in range(6):
        tokens = generator.integers(2, 60, 10 + sample)
        advantage = 1.0 if sample % 2 or recipe == "cispo" else -1.0
        columns = {"advantages": advantage, "logprobs": 0.0}
        rows.append(PackRow(tokens, np.arange(len(tokens)) >= 4, columns))
    micro = pack(rows)
    start = trainer.logprobs(micro)
    micro.columns.update({"logprobs": start, "proximal": start})
    for name in {"reference", "teacher"} & set(policy_columns(algorithm)):
        micro.columns[name] = start if name == "reference" else torch.where(micro.mask, -1.0, 0.0)
    if prepare is not None:
        prepare([micro])
    losses = []
    # CISPO's weights grow with the policy, up to their bound: only then does its loss fall.
    for _ in range(60 if recipe == "cispo" else 8):
        trainer.accumulate(micro)
        losses.append(trainer.step().loss)
    assert losses[-1] < losses[0]


def test_the_critics_loss_falls_on_a_fixed_batch(model: Path) -> None:
    trainer = HFTrainer(
        load_value_model(model, dtype=torch.float32, device="cpu"),
        config=TrainerConfig(optimizer=OptimizerConfig(lr=1e-3)),
        loss=ValueObjective(clip=None),
        total_steps=8,
        outputs=token_values,
    )
    generator = np.random.default_rng(0)
    rows = [
        PackRow(generator.integers(2, 60, 9), np.arange(9) >= 4, {"values": 0.0, "returns": float(sample % 2)})
        for sample in range(6)
    ]
    losses = []
    for _ in range(8):
        trainer.accumulate(pack(rows))
        losses.append(trainer.step().loss)
    assert losses[0] == pytest.approx(0.25, abs=1e-3)  # half the mean square of returns, from a head that says 0
    assert losses[-1] < 0.9 * losses[0]


def test_one_sample_a_prompt_is_enough_for_ppo(tmp_path: Path) -> None:
    ended = run(tmp_path, algorithm__recipe="ppo", rollout__samples_per_prompt=1, trainer__batches=3)
    assert ended.status == "finished"
    assert len(ended.record.batches) == 3
    assert all(batch.reference_kl is not None for batch in ended.record.batches[1:])


@pytest.mark.slow
@pytest.mark.copied
@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm__recipe": "ppo", "algorithm__updates_per_batch": 2, "critic__warmup_batches": 1},
        {"algorithm__recipe": "ppo", "critic__updates_per_batch": 3},
        {"algorithm__recipe": "ppo", "algorithm__updates_per_batch": 2, "critic__updates_per_batch": 2},
        {"algorithm__recipe": "ppo", "algorithm__epochs_per_batch": 2, "critic__updates_per_batch": 3},
        {"algorithm__recipe": "m2po", "algorithm__epochs_per_batch": 2, "algorithm__updates_per_batch": 2},
        {"algorithm__epochs_per_batch": 2, "algorithm__proximal": "behavior", "algorithm__stop_kl": 0.1},
        {"algorithm__epochs_per_batch": 2, "proximal__placement": "own", "async__mode": "one_step_off"},
        {"algorithm__updates_per_batch": 2, "algorithm__proximal": "loglinear"},
        {"algorithm__updates_per_batch": 2, "algorithm__proximal": "behavior"},
        {"algorithm__updates_per_batch": 2, "algorithm__proximal": "current"},
        {"algorithm__kl": {"coefficient": 0.1}, "reference__placement": "hybrid", "algorithm__entropy": 0.01},
        {"algorithm__kl": {"coefficient": 0.1, "place": "reward"}, "algorithm__advantage": "opo"},
        {"algorithm__recipe": "ppo", "async__mode": "sync"},
        {"algorithm__recipe": "ppo", "model__dtype": "bfloat16"},
        {"algorithm__shaping": {"clip": [0, 0.5], "overlong_buffer": 4, "length_weight": 0.5}},
        {
            "algorithm": {"recipe": "ppo", "whiten": False, "truncated": "bootstrap", "kl": {"of": "proximal"}},
            "rollout__sampling__top_k": 20,
        },
        {"algorithm": {"recipe": "ppo", "truncated": "mask"}, "critic__updates_per_batch": 2, **HALF_END},
        {"algorithm": {"recipe": "rloo", "truncated": "mask", "kl": {"of": "proximal"}}, **HALF_END},
        {"algorithm": {"recipe": "m2po", "truncated": "mask"}, "proximal__placement": "own", **HALF_END},
    ],
    ids=lambda changes: ",".join(f"{key}={value}" for key, value in changes.items()),
)
def test_pieces_go_together(tmp_path: Path, changes: dict[str, object]) -> None:
    ended = run(tmp_path, trainer__batches=3, rollout__filters=[], **changes)
    assert ended.status == "finished"
    warm = int(changes.get("critic__warmup_batches", 0))
    assert [batch.skipped for batch in ended.record.batches] == [True] * warm + [False] * (3 - warm)


def test_distillation_without_a_teacher_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs teacher\.model"):
        run(tmp_path, algorithm__recipe="opd")


@pytest.mark.slow
@pytest.mark.copied
def test_every_recipe_has_an_example_that_names_nothing_that_is_not_there(tmp_path: Path, model: Path) -> None:
    make_job(tmp_path)
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == {*RECIPES, *OFFLINE}
    for name in RECIPES:
        overrides = [
            f"model.path={model}",
            f"data.train={tmp_path}/train.jsonl",
            f"reward.function={tmp_path}/reward.py:score",
            "rollout.sampling.max_new_tokens=64",
            "engine.max_context=96",
        ]
        overrides += [f"teacher.model={model}"] if name == "opd" else []
        config = load_config(TrainConfig, EXAMPLES / f"{name}.yaml", overrides)
        assert config.algorithm.recipe == name
        assert make_plan(config).recipe.name == name


@pytest.mark.parametrize("name", OFFLINE)
def test_an_offline_example_runs_and_its_loss_falls_on_a_fixed_batch(tmp_path: Path, model: Path, name: str) -> None:
    kind, train_on, batch, row = OFFLINE[name]
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{letter}:", **row}) + "\n" for letter in "abcdefgh"))
    overrides = [
        f"model.path={model}",
        "model.dtype=float32",
        f"data.train={data}",
        f"trainer.{batch}=8",
        "trainer.steps=3",
        "trainer.optimizer.lr=1e-3",
        "runtime.threads=1",
    ]
    config = load_config(kind, EXAMPLES / f"{name}.yaml", overrides)
    result = train_on(config, tmp_path / "out", report=lambda *_: None, now=lambda: 0.0)
    assert (result.steps, result.skipped_steps) == (3, 0)
    assert result.last_loss < result.first_loss


def test_the_roles_of_ppo_compute_at_the_same_time(tmp_path: Path) -> None:
    """By the trace: the reference, the critic and the engine each ran while the actor or another one did."""
    run(tmp_path, algorithm__recipe="ppo", trainer__batches=6, rollout__filters=[], runtime__trace=True)
    events = json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    spans = [(e["name"].partition("/")[0], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X"]
    overlaps = {
        frozenset((a, b)) for a, begin, end in spans for b, other, _ in spans if a != b and begin <= other < end
    }
    assert {"engine", "trainer", "reference", "critic"} <= {name for name, _, _ in spans}
    for lane in ("reference", "critic", "engine"):
        assert any(lane in pair for pair in overlaps), f"{lane} always computed alone"


@pytest.mark.parametrize("changes", [{"runtime__turns": True}, {"async__mode": "sync"}], ids=["turns", "sync"])
def test_in_turns_nothing_that_computes_for_long_overlaps(tmp_path: Path, changes: dict[str, object]) -> None:
    """In `sync` never: how many threads a product has decides its last bits."""
    run(tmp_path, algorithm__recipe="ppo", trainer__batches=3, rollout__filters=[], runtime__trace=True, **changes)
    events = json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    heavy = ("engine", "trainer", "reference", "critic")
    computed = [e for e in events if e["ph"] == "X" and e["name"].partition("/")[0] in heavy]
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in computed)
    assert all(earlier[1] <= later[0] + 1 for earlier, later in itertools.pairwise(spans))


def test_a_critic_is_restored_with_the_policy(tmp_path: Path) -> None:
    first = run(tmp_path, algorithm__recipe="ppo", trainer__batches=4, rollout__filters=[])
    assert first.status == "finished"
    kept = sorted((tmp_path / "run" / "checkpoints").iterdir())[-1]
    assert (kept / "critic" / "model" / "config.json").exists()
