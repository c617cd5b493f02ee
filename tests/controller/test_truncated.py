"""Whole runs under each rule for samples that a limit cut off."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from controller_jobs import EOS, make_job, make_model
from controller_notes import Note, model_values, note_kl, note_stage, noted_kl, notes
from safetensors.torch import load_file
from torch import Tensor

from headrace.config import TrainConfig, load_config
from headrace.controller.divergence import Divergence, TrainingDiverged
from headrace.controller.planning.plan import make_plan
from headrace.controller.train import Ended, train
from headrace.models.packing import MicroBatch
from headrace.roles.actors.batch_stats import BatchStats
from headrace.roles.actors.trained_step import TrainedStep
from headrace.training.trainer import HFTrainer

STOPS = list(range(2, 10))
"""Of 74 tokens; a response of 8 that chance draws ends by itself in about half of all cases."""
ENVIRONMENT = """
from headrace.rollout.environment import StepResult

class Env:
    def reset(self, row):
        return None

    def step(self, action):
        return StepResult(observation="no;", reward=0.25 * (len(action) % 3), done=sum(map(ord, action)) % 3 == 0)
"""


def run(folder: Path, algorithm: dict[str, object], *columns: str, **changes: object) -> Ended:
    """Synchronous, with a checkpoint of every version, and notes of all rows."""
    settings = {
        "algorithm": {**algorithm, "stages": [note_stage(folder, *columns)]},
        "async__mode": "sync",
        "trainer__batches": 4,
        "critic__optimizer__lr": 1e-2,
        "rollout__samples_per_prompt": 4,
        "rollout__filters": [],
        "rollout__sampling__stop_token_ids": STOPS,
        "checkpoint": {"every": 1, "keep": 10},
        "data__eval": None,
        **changes,
    }
    (folder / "env.py").write_text(ENVIRONMENT)
    job = make_job(folder, **settings)
    return asyncio.run(train(make_plan(load_config(TrainConfig, job)), folder / "run", "new"))


def ended_by_itself(note: Note) -> bool:
    return note.tokens[note.last_chosen] in (EOS, *STOPS)


GAE = {"recipe": "ppo", "whiten": False, "lam": 1.0, "gamma": 0.9, "kl": {"coefficient": 0.0}}


@pytest.mark.slow
@pytest.mark.copied
@pytest.mark.parametrize("turns", [1, 2])
def test_the_critic_says_what_was_to_come(tmp_path: Path, turns: int) -> None:
    """The column is the critic's value, under the weights of that batch, of all tokens; the last delta has it."""
    multi = {
        "rollout__workflow": "multi_turn",
        "rollout__environment": f"{tmp_path}/env.py:Env",
        "rollout__max_turns": turns,
        "rollout__sampling__max_new_tokens": 4,
    }
    changes = multi if turns > 1 else {}
    ended = run(tmp_path, {**GAE, "truncated": "bootstrap"}, "values", "last_value", **changes)
    assert ended.status == "finished"
    rows = [note for note in notes(tmp_path) if note.batch in (1, 2)]
    assert {note.truncated for note in rows} == {True, False}
    for note in rows:
        last, place = note.others["last_value"], note.last_chosen
        if turns == 1:
            assert note.truncated != ended_by_itself(note)
            assert note.truncated <= (sum(note.loss_mask) == 8)
        elif note.truncated:
            assert note.tokens[place + 1 :] != [], "an observation, after which another turn would have begun"
        critic = tmp_path / "run" / "checkpoints" / f"step_{note.batch}" / "critic" / "model"
        values = model_values(critic, note.tokens)
        assert last == pytest.approx(values[-1] if note.truncated else 0.0, abs=1e-5)
        assert note.others["values"][place] == pytest.approx(values[place - 1], abs=1e-5)
        delta = note.reward + 0.9 * last - note.others["values"][place]
        assert note.advantages[place] == pytest.approx(delta, abs=1e-5)
    assert any(abs(note.others["last_value"]) > 1e-2 for note in rows)


@pytest.mark.slow
@pytest.mark.copied
def test_an_observation_past_the_context_ends_no_run(tmp_path: Path) -> None:
    """The model has 96 positions, which it has learned: there is no 97th."""
    job = make_job(
        tmp_path,
        rollout__workflow="multi_turn",
        rollout__environment=f"{tmp_path}/env.py:Talks",
        rollout__max_turns=3,
        rollout__filters=[],
        algorithm={**GAE, "truncated": "bootstrap", "stages": [note_stage(tmp_path, "last_value")]},
        critic__optimizer__lr=1e-2,
        trainer__batches=4,
        data__eval=None,
    )
    make_model(tmp_path / "model", "gpt2")
    (tmp_path / "env.py").write_text(ENVIRONMENT.replace("class Env", "class Talks").replace('"no;"', '"no;" * 99'))
    ended = asyncio.run(train(make_plan(load_config(TrainConfig, job)), tmp_path / "run", "new"))
    assert ended.status == "finished"
    cut_off = [note for note in notes(tmp_path) if note.truncated]
    assert {len(note.tokens) for note in cut_off} == {96}
    assert any(note.others["last_value"] for note in cut_off)


def test_by_default_a_sample_that_was_cut_off_ended_there(tmp_path: Path) -> None:
    ended = run(tmp_path, dict(GAE), "values")
    assert ended.status == "finished"
    rows = [note for note in notes(tmp_path) if note.batch == 1]
    assert any(note.truncated for note in rows)
    for note in rows:
        place = note.last_chosen
        assert note.advantages[place] == pytest.approx(note.reward - note.others["values"][place], abs=1e-5)
    assert sum(batch.truncated_samples for batch in ended.record.batches[:2]) == sum(
        note.truncated for note in notes(tmp_path) if note.batch < 2
    )


@pytest.mark.parametrize("advantage", ["mean_only", "gae"])
def test_a_left_out_sample_is_in_no_loss_and_stays_in_its_groups_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, advantage: str
) -> None:
    trained: dict[tuple[int, ...], list[bool]] = defaultdict(list)
    accumulate = HFTrainer.accumulate

    def spy(self: HFTrainer, micro: MicroBatch) -> Mapping[str, Tensor]:
        for tokens, mask in zip(micro.tokens.split(micro.lengths), micro.mask.split(micro.lengths), strict=True):
            trained[tuple(tokens.tolist())].append(bool(mask.any()))
        return accumulate(self, micro)

    monkeypatch.setattr(HFTrainer, "accumulate", spy)
    algorithm = dict(GAE) if advantage == "gae" else {"advantage": advantage}
    ended = run(tmp_path, {**algorithm, "truncated": "mask"})
    assert ended.status == "finished"
    rows = [note for note in notes(tmp_path) if note.batch < 3]
    assert {note.truncated for note in rows} == {True, False}
    for note in rows:
        models = 2 if advantage == "gae" else 1
        assert trained[tuple(note.tokens)][:models] == [not note.truncated] * models
    for batch in ended.record.batches[:3]:
        of_batch = [note for note in rows if note.batch == batch.batch]
        assert batch.truncated_samples == sum(note.truncated for note in of_batch)
        assert batch.trained_tokens == sum(sum(note.loss_mask) for note in of_batch if not note.truncated)
        assert batch.masked_tokens == 0
    if advantage == "mean_only":
        groups = defaultdict(list)
        for note in rows:
            groups[tuple(note.group)].append(note.reward)
        for note in rows:
            rewards = groups[tuple(note.group)]
            assert len(rewards) == 4
            place = note.last_chosen
            assert note.advantages[place] == pytest.approx(note.reward - sum(rewards) / 4, abs=1e-6)


def test_what_the_record_and_the_kls_controller_say_leaves_them_out(tmp_path: Path) -> None:
    """Each sample is a step: those on samples that were cut off are none, and no fault."""
    kl = {"coefficient": 0.1, "controller": note_kl(tmp_path)}
    algorithm = {"advantage": "mean_only", "truncated": "mask", "updates_per_batch": 8, "kl": kl}
    ended = run(tmp_path, algorithm)
    left = [batch.samples - batch.truncated_samples for batch in ended.record.batches]
    assert any(0 < count < 8 for count in left)
    assert [samples for _, samples in noted_kl(tmp_path)] == [n for n in left if n]
    for batch, count in zip(ended.record.batches, left, strict=True):
        assert batch.skipped == (count == 0)
        assert [epoch.steps for epoch in batch.epochs] == ([count] if count else [])


def step(samples: int, truncated: int) -> TrainedStep:
    return TrainedStep(0, 1, 0, {}, BatchStats(samples=samples, truncated_samples=truncated), (), 0.0)


def test_a_run_that_leaves_everything_out_ends_with_what_to_change() -> None:
    watch = Divergence(masks_truncated=True)
    for _ in range(9):
        watch.look_at(step(4, 4))
    watch.look_at(step(4, 3))
    for _ in range(9):
        watch.look_at(step(4, 4))
    with pytest.raises(TrainingDiverged, match=r"every sample was cut off in 10 batches.*max_new_tokens"):
        watch.look_at(step(4, 4))
    allowed = Divergence(masks_truncated=False)
    for _ in range(20):
        allowed.look_at(step(4, 4))


def test_a_batch_that_is_left_out_whole_changes_nothing(tmp_path: Path) -> None:
    """One token a response, which is hardly ever the end."""
    ended = run(
        tmp_path,
        {**GAE, "truncated": "mask"},
        trainer__batches=3,
        rollout__sampling={"max_new_tokens": 1},
    )
    assert ended.status == "finished"
    assert [batch.truncated_samples for batch in ended.record.batches] == [8, 8, 8]
    assert all(batch.skipped and batch.trained_tokens == 0 for batch in ended.record.batches)
    for name in ("model", "critic/model"):
        first, last = (
            load_file(tmp_path / "run" / "checkpoints" / f"step_{number}" / name / "model.safetensors")
            for number in (1, 3)
        )
        assert all(torch.equal(first[key], last[key]) for key in first)
