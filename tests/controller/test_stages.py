"""Stages of the user's own, and the models that follow the policy's versions."""

import asyncio
from pathlib import Path

import pytest
import torch
from controller_jobs import make_job
from controller_jobs import run as command
from safetensors.torch import load_file

from headrace.algorithms.pieces import PieceError
from headrace.config import ConfigError, TrainConfig, load_config
from headrace.controller.planning.plan import make_plan
from headrace.controller.train import Ended, train

PIECES = """
import numpy as np

def bonus(tokens, loss_mask, reward):
    assert tokens.shape == loss_mask.shape
    return {"bonus": np.where(loss_mask, reward, 0.0), "half": 0.5}

def place(reward):
    order = sorted(reward)
    return {"place": [order.index(r) for r in reward]}

def advantage(data):
    places = data.columns["place"]
    assert places[data.mask].min() >= 0 and places.max() <= 2
    return data.columns["bonus"] - 0.5

def loss(logprobs, proximal, advantages, mask, sample_index, *, bonus, half):
    from headrace.algorithms.losses import reinforce
    assert ((advantages - (bonus - half))[mask].abs() < 1e-6).all()
    return reinforce(logprobs, advantages, mask)

def ranks(reward, group, episode):
    assert len({g.key for g in group}) == 2 and len(reward) == 6
    return {"rank": [sorted(reward).index(r) for r in reward]}

def of_batch(data):
    assert data.columns["rank"].max() <= 5
    return data.columns["rank"] - 2.5

def raises(tokens):
    raise KeyError("my fault")

def waits(data):
    return data.rewards

def hangs(tokens):
    import time
    while True:
        time.sleep(1)

def hung_loss(logprobs, proximal, advantages, mask, sample_index):
    hangs(logprobs)

def hung_advantage(data):
    hangs(data)

def writes(logprobs):
    logprobs[:] = 0
    return {"x": 0}

def short(tokens):
    return {"x": tokens[1:]}

def one_number(reward):
    return {"x": 2.0}

def other(tokens):
    return {"y": tokens}
"""


def run(folder: Path, begin: str = "new", **changes: object) -> Ended:
    job = make_job(folder, **changes)
    return asyncio.run(train(make_plan(load_config(TrainConfig, job)), folder / "run", begin))  # type: ignore[arg-type]


def stage(folder: Path, name: str, reads: list[str], writes: list[str], unit: str = "row") -> dict[str, object]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pieces.py").write_text(PIECES)
    return {"name": name, "function": f"{folder}/pieces.py:{name}", "reads": reads, "writes": writes, "unit": unit}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    newest = max((folder / "run" / "checkpoints").iterdir(), key=lambda path: int(path.name.partition("_")[2]))
    return load_file(newest / "model" / "model.safetensors")


def test_columns_of_own_stages_reach_own_advantage_and_loss(tmp_path: Path) -> None:
    algorithm = {
        "stages": [
            stage(tmp_path, "bonus", ["tokens", "loss_mask", "reward"], ["bonus", "half"]),
            stage(tmp_path, "place", ["reward"], ["place"], "group"),
        ],
        "advantage": f"{tmp_path}/pieces.py:advantage",
        "advantage_reads": ["bonus", "place"],
        "loss": f"{tmp_path}/pieces.py:loss",
        "loss_reads": ["bonus", "half"],
    }
    ended = run(tmp_path, algorithm=algorithm, trainer__batches=3, rollout__filters=[])
    assert ended.status == "finished"
    assert not any(batch.skipped for batch in ended.record.batches)


def test_a_stage_may_see_the_whole_batch(tmp_path: Path) -> None:
    algorithm = {
        "stages": [stage(tmp_path, "ranks", ["reward", "group", "episode"], ["rank"], "batch")],
        "advantage": f"{tmp_path}/pieces.py:of_batch",
        "advantage_reads": ["rank"],
    }
    ended = run(tmp_path, algorithm=algorithm, trainer__batches=3, rollout__filters=[])
    assert ended.status == "finished"
    plan = make_plan(load_config(TrainConfig, tmp_path / "grpo.yaml"))
    assert plan.recipe.stops_streaming == ("ranks",)


@pytest.mark.parametrize(
    ("name", "column", "said"),
    [
        ("raises", "x", r"stage raises raised KeyError: 'my fault'"),
        ("short", "x", r"stage short returned x of shape \(\d+,\) for a row of \d+ tokens"),
        ("one_number", "x", r"stage one_number returned float as x; return a list, a value a row"),
        ("other", "x", r"stage other returned \['y'\]; return a mapping with x"),
    ],
)
def test_a_stage_that_breaks_its_word_ends_the_run_by_name(tmp_path: Path, name: str, column: str, said: str) -> None:
    group = name == "one_number"
    reads = ["reward"] if group else ["tokens"]
    algorithm = {"stages": [stage(tmp_path, name, reads, [column], "group" if group else "row")]}
    with pytest.raises(PieceError, match=said):
        run(tmp_path, algorithm=algorithm, trainer__batches=2, rollout__filters=[])


@pytest.mark.slow
def test_a_stage_that_never_returns_ends_the_run_by_name(tmp_path: Path) -> None:
    algorithm = {
        "stages": [stage(tmp_path, "hangs", ["tokens"], ["x"])],
        "advantage": f"{tmp_path}/pieces.py:waits",
        "advantage_reads": ["x"],
    }
    settings = {"runtime__stall_timeout_s": 3, "rollout__episode_timeout_s": 3, "reward__timeout_s": 3}
    job = make_job(tmp_path, algorithm=algorithm, trainer__batches=2, rollout__filters=[], **settings)
    code, out = command("train", job, "--dir", tmp_path / "run", timeout=90)
    assert code == 1, out
    assert "waited 3.0 s for" in out
    assert "stage hangs to return (lane functions)" in out
    assert "the last call on lane 'functions' did not return; it is left behind" in out


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["loss", pytest.param("advantage", marks=pytest.mark.soak)])
def test_a_piece_that_never_returns_ends_the_run_by_name(tmp_path: Path, piece: str) -> None:
    """On one thread, which the engine cannot have back either: its lane is left behind, or the trainer's, which is told
    to be stuck."""
    (tmp_path / "pieces.py").write_text(PIECES)
    settings = {"runtime__stall_timeout_s": 3, "rollout__episode_timeout_s": 3, "reward__timeout_s": 3}
    algorithm = {piece: f"{tmp_path}/pieces.py:hung_{piece}"}
    settings |= {"runtime__stuck": {"microbatch_s": 6}, "runtime__threads": 1}
    job = make_job(tmp_path, algorithm=algorithm, rollout__filters=[], **settings)
    code, out = command("train", job, "--dir", tmp_path / "run", timeout=120)
    assert code == 1, out
    assert "waited 3.0 s for" in out
    assert "did not return; it is left behind" in out or "trainer is stuck: no microbatch has ended for" in out


def test_a_stage_cannot_write_into_what_others_read(tmp_path: Path) -> None:
    algorithm = {"stages": [stage(tmp_path, "writes", ["logprobs"], ["x"])]}
    with pytest.raises(PieceError, match=r"stage writes raised ValueError: .*read-only"):
        run(tmp_path, algorithm=algorithm, trainer__batches=2, rollout__filters=[])


def test_a_stage_that_does_not_take_its_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.stages: raises: function is .*called as \(reward=\.\.\.\)"):
        run(tmp_path, algorithm={"stages": [stage(tmp_path, "raises", ["reward"], ["x"])]})


@pytest.mark.slow
@pytest.mark.copied
def test_a_proximal_policy_of_its_own_gives_the_same_training(tmp_path: Path) -> None:
    settings = {
        "algorithm__updates_per_batch": 2,
        "async__mode": "sync",
        "trainer__batches": 3,
        "trainer__optimizer__lr": 1e-3,
        "rollout__filters": [],
    }
    for placement in ("hybrid", "own"):
        ended = run(tmp_path / placement, proximal__placement=placement, **settings)
        assert ended.status == "finished"
    own, hybrid = weights(tmp_path / "own"), weights(tmp_path / "hybrid")
    assert all(torch.allclose(own[name], hybrid[name], atol=1e-4) for name in hybrid)


def test_a_proximal_policy_of_its_own_keeps_up_with_asynchronous_training(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        algorithm__recipe="ppo",
        algorithm__updates_per_batch=2,
        proximal__placement="own",
        trainer__batches=4,
        rollout__filters=[],
    )
    assert ended.status == "finished"
    assert len(ended.record.batches) == 4


@pytest.mark.slow
@pytest.mark.copied
@pytest.mark.parametrize("placement", ["own", "hybrid"])
def test_a_refreshed_reference_is_the_policy_of_that_batch(tmp_path: Path, placement: str) -> None:
    settings = {
        "algorithm__kl": {"coefficient": 0.1},
        "reference__placement": placement,
        "async__mode": "sync",
        "trainer__batches": 4,
        "trainer__optimizer__lr": 3e-3,
        "checkpoint__every": 2,
        "rollout__filters": [],
    }
    refreshed = run(tmp_path / "refreshed", reference__refresh_every=2, **settings)
    fixed = run(tmp_path / "fixed", **settings)
    kl = [batch.reference_kl or 0.0 for batch in refreshed.record.batches]
    assert kl[0] == pytest.approx(0, abs=1e-6)
    assert kl[1] > 1e-4
    assert kl[2] == pytest.approx(0, abs=1e-6)
    assert kl[3] > 1e-4
    assert fixed.record.batches[2].reference_kl > 1e-4  # type: ignore[operator]
    folder = tmp_path / "refreshed" / "run" / "checkpoints"
    saved = load_file(folder / "step_2" / "reference" / "weights.safetensors")
    policy = load_file(folder / "step_2" / "model" / "model.safetensors")
    assert all(torch.equal(saved[name], policy[name]) for name in saved)
