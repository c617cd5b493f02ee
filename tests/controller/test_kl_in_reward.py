"""Whole runs whose reward pays for the KL of either policy."""

import asyncio
from pathlib import Path

import pytest
from controller_jobs import make_job, make_model
from controller_notes import Note, model_logprobs, note_stage, notes

from headrace.config import ConfigError, TrainConfig, load_config
from headrace.config.reading.unused_keys import ineffective
from headrace.controller.planning.describe import describe_plan
from headrace.controller.planning.plan import make_plan
from headrace.controller.train import Ended, train

BETA = 0.2


def job(folder: Path, of: str, *columns: str, **changes: object) -> TrainConfig:
    """A reference that is not the policy, so that there is a KL from the first batch on."""
    algorithm = {
        "advantage": "reinforce_plus_plus",
        "kl": {"coefficient": BETA, "place": "reward", "estimator": "k1", "of": of},
        "stages": [note_stage(folder, *columns)] if columns else [],
        **changes.pop("algorithm", {}),  # type: ignore[dict-item]
    }
    other = make_model(folder / "other", "llama")
    settings = {
        "reference__model": str(other),
        "rollout__filters": [],
        "trainer__batches": 4,
        "checkpoint": {"every": 1, "keep": 10},
        "data__eval": None,
        **changes,
    }
    path = make_job(folder, algorithm=algorithm, **settings)
    return load_config(TrainConfig, path)


def run(folder: Path, of: str, *columns: str, **changes: object) -> Ended:
    return asyncio.run(train(make_plan(job(folder, of, *columns, **changes)), folder / "run", "new"))


def first_batch(folder: Path) -> dict[tuple[int, ...], Note]:
    return {tuple(note.tokens): note for note in notes(folder) if note.batch == 0}


@pytest.mark.slow
@pytest.mark.copied
def test_on_policy_both_are_the_same(tmp_path: Path) -> None:
    """eta is 0: the policy that sampled a token is the one that the batch begins with. With values of 0, and neither
    discount nor lambda, the first token's advantage is the reward less what all of them pay."""
    gae = {"advantage": "gae", "whiten": False, "lam": 1.0}
    settings = {"async__mode": "sync", "trainer__batches": 2}
    run(tmp_path / "behavior", "behavior", "reference", "logprobs", algorithm=gae, **settings)
    expected = first_batch(tmp_path / "behavior")
    assert len(expected) == 6
    paid = {}
    for tokens, note in expected.items():
        paid[tokens] = BETA * (sum(note.others["logprobs"]) - sum(note.others["reference"]))
        first = note.loss_mask.index(True)
        assert note.advantages[first] == pytest.approx(note.reward - paid[tokens], abs=1e-5)
    assert max(map(abs, paid.values())) > 0.05
    for placement in ("hybrid", "own"):
        run(tmp_path / placement, "proximal", "proximal", algorithm=gae, proximal__placement=placement, **settings)
        found = first_batch(tmp_path / placement)
        assert found.keys() == expected.keys()
        for tokens, note in expected.items():
            assert found[tokens].advantages == pytest.approx(note.advantages, abs=1e-5)


@pytest.mark.parametrize("placement", ["hybrid", "own"])
@pytest.mark.parametrize("updates", [1, 2])
def test_rows_are_scored_under_the_weights_that_their_batch_begins_with(
    tmp_path: Path, placement: str, updates: int
) -> None:
    """Also tokens that older versions sampled, whose own log-probs are others."""
    ended = run(
        tmp_path,
        "proximal",
        "proximal",
        "logprobs",
        "versions",
        algorithm={"updates_per_batch": updates},
        proximal__placement=placement,
        trainer__optimizer__lr=5e-3,
        async__max_staleness=3,
        async__ahead=8,
    )
    assert ended.status == "finished"
    stale = 0
    for note in notes(tmp_path):
        folder = tmp_path / "run" / "checkpoints" / f"step_{note.batch}" / "model"
        logprobs = model_logprobs(folder if note.batch else tmp_path / "model", note.tokens)
        chosen = [i for i, is_chosen in enumerate(note.loss_mask) if is_chosen]
        for i in chosen:
            assert note.others["proximal"][i] == pytest.approx(logprobs[i], abs=2e-5)
        if any(note.others["versions"][i] < note.batch for i in chosen):
            stale += max(abs(note.others["proximal"][i] - note.others["logprobs"][i]) for i in chosen) > 1e-3
    assert stale, "no token was older than its batch"


def test_check_says_where_it_runs_and_a_copy_is_made_only_for_a_lane_of_its_own(tmp_path: Path) -> None:
    hybrid = make_plan(job(tmp_path / "hybrid", "proximal"))
    own = make_plan(job(tmp_path / "own", "proximal", proximal__placement="own"))
    assert "proximal: weights" not in hybrid.memory.uses
    assert "proximal: weights" in own.memory.uses
    lines = {line.split()[0]: line for line in describe_plan(hybrid).splitlines() if line.startswith("  proximal")}
    assert "in turn with the actor" in lines["proximal"]
    assert "compute lane 'proximal'" in describe_plan(own)


def test_what_has_no_effect_is_told_and_what_cannot_be_is_refused(tmp_path: Path) -> None:
    assert not ineffective(job(tmp_path / "reward", "proximal", proximal__placement="own"))
    in_loss = job(tmp_path / "loss", "proximal", algorithm={"kl": {"coefficient": 0.1, "of": "proximal"}})
    assert ineffective(in_loss) == ["algorithm.kl.of has no effect: algorithm.kl.place is loss"]
    with pytest.raises(ConfigError, match=r"use proximal: recompute, or kl\.of: behavior"):
        job(tmp_path / "refused", "proximal", algorithm={"proximal": "loglinear", "updates_per_batch": 2})
