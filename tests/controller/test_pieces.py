"""Functions of the user's own in the place of every named piece of an algorithm."""

import asyncio
import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from controller_jobs import ALONE, make_job, make_model
from safetensors.torch import load_file

from headrace.algorithms.pieces import PieceError
from headrace.config import ConfigError, DPOConfig, RMConfig, SFTConfig, TrainConfig, load_config
from headrace.controller.divergence import TrainingDiverged
from headrace.controller.planning.plan import make_plan
from headrace.controller.train import Ended, train
from headrace.offline.loop import OfflineResult
from headrace.offline.pairs import run_dpo, run_rm
from headrace.offline.sft import run_sft

MINE = """
import torch
from headrace.algorithms import aggregation, corrections, kl as kls, losses

def loss(logprobs, proximal, advantages, mask, sample_index):
    return losses.clipped_surrogate(logprobs, proximal, advantages, mask, clip_low=0.2, clip_high=0.2)

def advantage(data):
    from headrace.algorithms.advantages import group_normalized
    return group_normalized(data.shaped, data.group_index)

def aggregate(per_token, mask, sample_index):
    return aggregation.aggregate(per_token, mask, sample_index, mode="sample_mean")

def weights(proximal, behavior, mask, sample_index):
    return corrections.behavior_weights(proximal, behavior, mask, sample_index, low=0.0, high=5.0)

def kl(logprobs, reference):
    return kls.estimate(logprobs, reference, kind="k3")

def shape(rewards, lengths, group_index):
    return rewards.clamp(0, 0.5)

def values(values, old_values, returns, mask):
    return losses.value_loss(values, old_values, returns, mask, clip=0.2)

def sft(logprobs, mask, sample_index):
    return losses.sft(logprobs, mask)

def dpo(logprobs, reference, mask, sample_index, pair_index, chosen):
    return losses.preference(logprobs, reference, mask, sample_index, pair_index, chosen, beta=0.1)

def rm(scores, pair_index, chosen):
    return losses.reward_ranking(scores, pair_index, chosen)

def interpolate(current, behavior, versions, batch, progress):
    from pathlib import Path
    from headrace.algorithms.proximal import loglinear
    with Path(__file__).with_name("progress").open("a") as seen:
        print(progress, file=seen)
    if progress == 0:
        return current
    return loglinear(current, behavior, versions, proximal_version=batch, current_version=batch + progress)

def by_hand(data):
    from headrace.algorithms.advantages import gae
    per_token = torch.zeros_like(data.values)
    last = data.mask & (torch.arange(len(data.mask)) == len(data.mask) - 1)
    for sample in range(len(data.episode)):
        places = ((data.sample_index == sample) & data.mask).nonzero()
        per_token[places[-1]] = data.shaped[data.episode[sample]]
    advantages, returns = gae(per_token, data.values, data.mask, data.sample_index, gamma=1.0, lam=0.95)
    return {"advantages": advantages, "returns": returns}

def against(data):
    return data.columns["teacher"] - data.behavior

def told(logprobs, proximal, advantages, mask, sample_index, versions):
    loss = losses.reinforce(logprobs, advantages, mask)
    return losses.Loss(loss.per_token, {"seven": 7.0 * mask.sum(), "oldest": versions[mask].min() * 0.0})

def not_finite(logprobs, proximal, advantages, mask, sample_index):
    return losses.Loss(logprobs * torch.nan, {})

def nan(data):
    return data.rewards * torch.nan

def mean_of_pairs(logprobs, reference, mask, sample_index, pair_index, chosen):
    loss = dpo(logprobs, reference, mask, sample_index, pair_index, chosen)
    return losses.PairLoss(loss.per_pair.mean()[None], {})

def exits(*args):
    raise SystemExit(3)

def raises(*args):
    return args[0].nothing

def a_tensor(*args):
    return args[0][:1]
"""


def run(folder: Path, **changes: object) -> Ended:
    job = make_job(folder, **{**ALONE, "rollout__filters": [], "trainer__batches": 3, "async__mode": "sync", **changes})
    return asyncio.run(train(make_plan(load_config(TrainConfig, job)), folder / "run", "new"))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "run" / "checkpoints" / "step_3" / "model" / "model.safetensors")


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return str(tmp_path / "mine.py")


@pytest.mark.slow
@pytest.mark.copied
def test_pieces_that_say_what_ours_do_train_the_same(tmp_path: Path, mine: str) -> None:
    """GRPO with a KL in the loss, piece by piece."""
    named = {
        "updates_per_batch": 2,
        "kl": {"coefficient": 0.1, "estimator": "k3"},
        "shaping": {"clip": [0, 0.5]},
    }
    own = {
        "updates_per_batch": 2,
        "loss": f"{mine}:loss",
        "advantage": f"{mine}:advantage",
        "aggregation": f"{mine}:aggregate",
        "behavior": {"mode": f"{mine}:weights"},
        "kl": {"coefficient": 0.1, "estimator": f"{mine}:kl"},
        "shaping": {"function": f"{mine}:shape"},
    }
    first = run(tmp_path / "named", algorithm=named)
    second = run(tmp_path / "own", algorithm=own)
    ours, theirs = weights(tmp_path / "named"), weights(tmp_path / "own")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for ours_, theirs_ in zip(first.record.batches, second.record.batches, strict=True):
        for field in ("loss", "behavior_weight_mean", "behavior_outside_share", "reference_kl", "clip_fraction"):
            assert getattr(ours_, field) == getattr(theirs_, field), field


@pytest.mark.slow
@pytest.mark.copied
def test_an_advantage_that_reads_the_critics_values_has_a_critic(tmp_path: Path, mine: str) -> None:
    """GAE by hand learns as PPO does without whitening and KL."""
    ours = {"recipe": "ppo", "whiten": False, "kl": {"coefficient": 0.0}}
    first = run(tmp_path / "ours", algorithm=ours)
    own = {**ours, "advantage": f"{mine}:by_hand", "advantage_reads": ["values"]}
    second = run(tmp_path / "own", algorithm=own)
    for field in ("critic_loss", "loss", "grad_norm"):
        left, right = ([getattr(batch, field) for batch in ended.record.batches] for ended in (first, second))
        assert right == pytest.approx(left, rel=1e-3), field


def test_an_advantage_that_reads_the_teacher_has_one(tmp_path: Path, mine: str) -> None:
    teacher = make_model(tmp_path / "teacher", "llama")
    algorithm = {"recipe": "opd", "advantage": f"{mine}:against", "advantage_reads": ["teacher"]}
    assert run(tmp_path / "job", algorithm=algorithm, teacher__model=str(teacher)).status == "finished"
    with pytest.raises(ConfigError, match=r"a function of yours reads teacher, which needs teacher\.model"):
        run(tmp_path / "none", algorithm=algorithm)


@pytest.mark.slow
@pytest.mark.copied
def test_an_interpolation_of_the_users_own(tmp_path: Path, mine: str) -> None:
    for name, proximal in (("named", "loglinear"), ("own", f"{mine}:interpolate")):
        run(tmp_path / name, algorithm={"updates_per_batch": 2, "proximal": proximal})
    ours, theirs = weights(tmp_path / "named"), weights(tmp_path / "own")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert set((tmp_path / "progress").read_text().split()) == {"0.0", "0.5"}


def test_a_loss_reads_versions_and_what_it_reports_is_recorded(tmp_path: Path, mine: str) -> None:
    ended = run(tmp_path, algorithm={"loss": f"{mine}:told", "loss_reads": ["versions"]})
    assert [batch.own for batch in ended.record.batches] == [{"seven": 7.0, "oldest": 0.0}] * 3


def test_a_loss_that_is_never_finite_ends_the_run(tmp_path: Path, mine: str) -> None:
    with pytest.raises(TrainingDiverged, match="not finite in 10 batches in a row, up to batch 9"):
        run(tmp_path, algorithm={"loss": f"{mine}:not_finite"}, trainer__batches=30)


@pytest.mark.slow
@pytest.mark.copied
def test_a_value_loss_of_the_users_own(tmp_path: Path, mine: str) -> None:
    ended = [
        run(tmp_path / name, algorithm={"recipe": "ppo"}, critic__loss=loss)
        for name, loss in (("named", "value_loss"), ("own", f"{mine}:values"))
    ]
    first, second = ([batch.critic_loss for batch in each.record.batches] for each in ended)
    assert first == second


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ({"loss": "raises"}, r"algorithm\.loss \(.*mine\.py:raises\) raised AttributeError: .*nothing.*mine\.py:\d+"),
        ({"loss": "a_tensor"}, r"algorithm\.loss .* returned Tensor of shape \(1,\); return headrace.*Loss with"),
        ({"advantage": "raises"}, r"algorithm\.advantage .* raised AttributeError"),
        ({"advantage": "exits"}, r"algorithm\.advantage .* raised SystemExit: 3"),
        ({"advantage": "nan"}, r"algorithm\.advantage .* not finite"),
        ({"aggregation": "a_tensor"}, r"algorithm\.aggregation .* returned Tensor .*; return a tuple of two tensors"),
        ({"behavior": {"mode": "a_tensor"}}, r"algorithm\.behavior\.mode .* return headrace.*Weights"),
        (
            {"kl": {"coefficient": 0.1, "estimator": "a_tensor"}},
            r"algorithm\.kl\.estimator .* of shape \(1,\); return a",
        ),
        ({"shaping": {"function": "a_tensor"}}, r"algorithm\.shaping\.function .* return a tensor of shape \(\d,\)"),
    ],
)
def test_a_piece_that_breaks_its_word_ends_the_run_by_name(
    tmp_path: Path, mine: str, algorithm: dict[str, Any], said: str
) -> None:
    placed = json.dumps(algorithm)
    for name in ("raises", "a_tensor", "exits", "nan"):
        placed = placed.replace(f'"{name}"', f'"{mine}:{name}"')
    with pytest.raises(PieceError, match=said):
        run(tmp_path / "job", algorithm=json.loads(placed))


def test_a_piece_that_is_not_there_or_takes_other_arguments_is_refused(tmp_path: Path, mine: str) -> None:
    for algorithm, said in (
        ({"loss": f"{mine}:nothing"}, r"algorithm\.loss is .*mine\.py:nothing"),
        ({"aggregation": f"{mine}:kl"}, r"algorithm\.aggregation is .*called as \(per_token, mask, sample_index\)"),
        ({"aggregation": "sum"}, r"algorithm\.aggregation: 'sum' is not known; use token_mean.*path\.py:function"),
        ({"shaping": {"function": "mine"}}, r"shaping\.function: 'mine' is not known; use a function of yours"),
    ):
        with pytest.raises(ConfigError, match=said):
            run(tmp_path / "job", algorithm=algorithm)


OFFLINE: dict[str, tuple[Any, Any, str, dict[str, str]]] = {
    "sft": (SFTConfig, run_sft, "samples_per_batch", {"response": "AB"}),
    "rm": (RMConfig, run_rm, "pairs_per_batch", {"chosen": "AB", "rejected": "b"}),
    "dpo": (DPOConfig, run_dpo, "pairs_per_batch", {"chosen": "AB", "rejected": "b"}),
}


@pytest.mark.slow
@pytest.mark.copied
@pytest.mark.parametrize("name", OFFLINE)
def test_offline_losses_of_the_users_own(tmp_path: Path, mine: str, name: str) -> None:
    kind, train_on, batch, row = OFFLINE[name]
    model = make_model(tmp_path / "model")
    data = tmp_path / "train.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{letter}:", **row}) + "\n" for letter in "abcdefgh"))

    def result(**changes: object) -> OfflineResult:
        config = kind.model_validate(
            {
                "model": {"path": str(model), "device": "cpu"},
                "data": {"train": str(data)},
                "trainer": {batch: 4, "optimizer": {"lr": 1e-3}, "steps": 3},
                "runtime": {"threads": 1},
                **changes,
            }
        )
        return train_on(config, tmp_path / f"out{next(numbers)}", report=lambda *_: None, now=lambda: 0.0)

    numbers = count()
    assert result(loss=f"{mine}:{name}").last_loss == result().last_loss
    with pytest.raises(PieceError, match=r"loss \(.*mine\.py:a_tensor\) returned Tensor"):
        result(loss=f"{mine}:a_tensor")
    with pytest.raises(ConfigError, match=r"loss is .*nothing"):
        result(loss=f"{mine}:nothing")
    if name == "dpo":
        with pytest.raises(PieceError, match=r"per_pair of shape \(1,\); return .* per_pair of shape \(4,\)"):
            result(loss=f"{mine}:mean_of_pairs")


def test_the_coefficient_of_a_kl_in_the_loss_follows_its_target(tmp_path: Path) -> None:
    """The KL is far above its target: each batch of 6 samples moves the coefficient by 20 % x 6 / 60, from the first
    in which the policy has left the reference."""
    kl = {"coefficient": 0.1, "target": 1e-9, "horizon": 60}
    ended = run(tmp_path, algorithm={"kl": kl}, trainer__optimizer__lr=1e-2)
    first, second, third = (batch.kl_coefficient for batch in ended.record.batches)
    assert first == 0.1
    assert second == pytest.approx(0.1 * 0.98, rel=1e-3), "no KL yet: 20 % below the target at most"
    assert third == pytest.approx(second * 1.02)  # type: ignore[operator]


def test_a_kl_that_was_not_measured_is_not_followed(tmp_path: Path) -> None:
    """In the first two batches the critic learns alone."""
    kl = {"coefficient": 0.1, "place": "loss", "target": 0.01, "horizon": 60}
    settings = {"reference__model": str(make_model(tmp_path / "far", "llama")), "critic__warmup_batches": 2}
    ended = run(tmp_path / "job", algorithm={"recipe": "ppo", "kl": kl}, trainer__batches=4, **settings)
    assert [batch.kl_coefficient for batch in ended.record.batches] == pytest.approx([0.1, 0.1, 0.1, 0.102])
