"""A reward model as a role: trained from pairs, then the reward of a run."""

import asyncio
import json
import math
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from children import child
from controller_jobs import ALONE, make_job, make_model, run, start
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from headrace.cli.main import main
from headrace.config import ConfigError, RMConfig, TrainConfig, load_config
from headrace.controller.evaluate import evaluate
from headrace.controller.planning.plan import make_plan
from headrace.controller.train import Ended, train
from headrace.models.packing import MicroBatch
from headrace.offline.pairs import run_rm
from headrace.roles.columns.reward_model import AskedRewardModel
from headrace.store import RunReader
from headrace.training.frozen import FrozenRewardModel

FILTER = """
import json
def keep(group):
    samples = [
        {"tokens": s.tokens.tolist(), "mask": s.loss_mask.tolist(), "reward": s.reward} for s in group.trainable
    ]
    with open(__file__ + ".seen", "a") as file:
        file.write(json.dumps({"version": group.start_version, "samples": samples}) + "\\n")
    return True
def score(response, row):
    if sum(map(ord, response)) % 3 == 0:
        raise ValueError("no")
    return sum(map(ord, response)) % 7 / 7
"""


@pytest.fixture(scope="module")
def reward_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rm")
    pairs = [{"prompt": f"{a}+{a}=", "chosen": "a" * 3, "rejected": "Z" * 3} for a in range(8)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    config = RMConfig.model_validate(
        {
            "model": {"path": str(make_model(folder / "base")), "device": "cpu"},
            "data": {"train": str(folder / "pairs.jsonl")},
            "trainer": {"pairs_per_batch": 4, "steps": 12, "optimizer": {"lr": 3e-3}},
            "runtime": {"threads": 1},
        }
    )
    return run_rm(config, folder / "out", report=lambda step, loss, speed: None, now=lambda: 0.0).model


def job_with(folder: Path, reward: dict[str, Any], **changes: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "keep.py").write_text(FILTER)
    settings: dict[str, object] = {"trainer__batches": 3, "async__mode": "sync", "runtime__threads": 1, **changes}
    return make_job(folder, reward=reward, rollout__filters=[f"{folder}/keep.py:keep"], **settings)


def go(job: Path) -> Ended:
    plan = make_plan(load_config(TrainConfig, job))
    return asyncio.run(train(plan, job.parent / "run", "new"))


def seen(job: Path) -> list[dict[str, Any]]:
    """Groups as the user's filter saw them."""
    return [json.loads(line) for line in (job.parent / "keep.py.seen").read_text().splitlines()]


@torch.no_grad()
def own_scores(reward_model: Path, samples: list[dict[str, Any]]) -> list[float]:
    classifier = AutoModelForSequenceClassification.from_pretrained(reward_model).eval()
    classifier.config.pad_token_id = None  # one sample at a time: nothing is padding
    return [float(classifier(torch.tensor([sample["tokens"]])).logits[0, 0]) for sample in samples]


@pytest.mark.slow
@pytest.mark.copied
def test_alone_its_scores_are_the_rewards(tmp_path: Path, reward_model: Path) -> None:
    job = job_with(tmp_path, {"model": {"path": str(reward_model)}})
    ended = go(job)
    assert ended.status == "finished"
    groups = seen(job)
    samples = [sample for group in groups for sample in group["samples"]]
    scores = own_scores(reward_model, samples)
    assert [sample["reward"] for sample in samples] == pytest.approx(scores, abs=1e-4)
    assert max(scores) - min(scores) > 0.01, "they differ"
    for batch in ended.record.batches:  # in sync, batch k is what version k sampled
        rewards = [s["reward"] for group in groups if group["version"] == batch.batch for s in group["samples"]]
        assert batch.samples == len(rewards) == 6
        assert batch.reward_mean == pytest.approx(sum(rewards) / 6)
    assert all(evaluation.score is not None for evaluation in ended.record.evaluations)


@pytest.mark.slow
@pytest.mark.copied
def test_beside_a_rule_its_score_is_weighted_and_added(tmp_path: Path, reward_model: Path) -> None:
    model = {"path": str(reward_model), "weight": -0.5, "max_tokens_per_microbatch": 20}
    job = job_with(tmp_path, {"function": f"{tmp_path}/keep.py:score", "model": model}, rollout__samples_per_prompt=6)
    ended = go(job)
    assert any(totals.failed_samples for totals in ended.record.processes.values()), "so that groups have gaps"
    assert ended.status == "finished"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    samples = [sample for group in seen(job) for sample in group["samples"]]
    for sample, score in zip(samples, own_scores(reward_model, samples), strict=True):
        chosen = [token for token, is_chosen in zip(sample["tokens"], sample["mask"], strict=True) if is_chosen]
        response = tokenizer.decode(chosen, skip_special_tokens=True)
        rule = sum(map(ord, response)) % 7 / 7
        assert sample["reward"] == pytest.approx(rule - 0.5 * score, abs=1e-4)
    for batch in ended.record.batches:
        terms = batch.reward_terms
        assert set(terms) == {"score", "model"}
        assert terms["score"] - 0.5 * terms["model"] == pytest.approx(batch.reward_mean, abs=1e-4)


@pytest.mark.slow
@pytest.mark.copied
@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm__recipe": "ppo"},
        {"algorithm__updates_per_batch": 2},
        {"rollout__oversample": 2.0, "async__mode": "async"},
        {"async__mode": "async", "async__on_deadline": "late", "async__max_staleness": 4},
        {"model__dtype": "bfloat16"},
        {"runtime__turns": True},
    ],
    ids=lambda changes: ",".join(f"{key}={value}" for key, value in changes.items()),
)
def test_it_goes_with_other_settings(tmp_path: Path, reward_model: Path, changes: dict[str, object]) -> None:
    ended = go(job_with(tmp_path, {"model": {"path": str(reward_model)}}, trainer__batches=6, **changes))
    assert ended.status == "finished"
    assert [batch.batch for batch in ended.record.batches] == list(range(6))
    assert not any(batch.skipped for batch in ended.record.batches)
    ended.record.counts.check()


@pytest.mark.slow
@pytest.mark.copied
def test_it_scores_beside_generation_and_training(tmp_path: Path, reward_model: Path) -> None:
    """By the trace."""
    changes = {"trainer__batches": 16, "async__mode": "async", "runtime__threads": 2, "runtime__trace": True}
    assert go(job_with(tmp_path, {"model": {"path": str(reward_model)}}, **changes)).status == "finished"
    events = json.loads((tmp_path / "run" / "trace.json").read_text())["traceEvents"]
    spans = [(e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X"]
    assert any(
        a == "reward" and b in ("engine", "trainer") and begin < end_b and begin_b < end
        for a, begin, end in spans
        for b, begin_b, end_b in spans
    )


def test_evaluation_apart_from_a_run_scores_with_it_too(tmp_path: Path, reward_model: Path) -> None:
    job = job_with(tmp_path, {"model": {"path": str(reward_model)}})
    result = asyncio.run(evaluate(make_plan(load_config(TrainConfig, job))))["eval"]
    assert (result["prompts"], result["failed"]) == (4, 0)
    assert math.isfinite(result["reward_mean"])


@pytest.mark.slow
@pytest.mark.cpu
def test_a_run_is_the_same_wherever_the_model_is(tmp_path: Path, reward_model: Path) -> None:
    alike = {**ALONE, "rollout__workers": 0, "data__shuffle": False}  # requests of a worker come in any order
    records: dict[str, list[Any]] = {}
    for place in ("own", "process"):
        job = job_with(tmp_path / place, {"model": {"path": str(reward_model), "placement": place}}, **alike)
        ended = go(job)
        assert ended.status == "finished"
        records[place] = [
            [(batch.loss, batch.grad_norm, batch.reward_mean) for batch in ended.record.batches],
            [(evaluation.number, evaluation.score) for evaluation in ended.record.evaluations],
            [[sample["reward"] for sample in group["samples"]] for group in seen(job)],
            asyncio.run(evaluate(make_plan(load_config(TrainConfig, job))))["eval"]["reward_mean"],
        ]
    assert len(records["own"][0]) == 3
    assert records["own"] == records["process"]


@pytest.mark.slow
@pytest.mark.cpu
def test_one_whose_process_is_killed_comes_back_in_its_place_and_the_run_goes_on(
    tmp_path: Path, reward_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_with(tmp_path, {"model": {"path": str(reward_model), "placement": "process"}})
    scores, calls = AskedRewardModel.scores, []

    async def watched(model: AskedRewardModel, samples: Any) -> list[float]:
        calls.append(samples)
        if len(calls) == 5:
            victim = child("reward/0")
            os.kill(victim.pid, signal.SIGKILL)
        return await scores(model, samples)

    monkeypatch.setattr(AskedRewardModel, "scores", watched)
    ended = go(job)
    assert ended.status == "finished"
    ended.record.counts.check()
    with RunReader(tmp_path / "run") as reader:
        (lost,) = (event for event in reader.events.read() if event.kind == "worker_lost")
    assert lost.data["worker"] == "reward/0"


@pytest.mark.slow
@pytest.mark.cpu
def test_in_a_process_it_scores_what_a_worker_played_and_what_is_only_recorded(
    tmp_path: Path, reward_model: Path
) -> None:
    reward = {"model": {"path": str(reward_model), "placement": "process"}}
    played = go(job_with(tmp_path / "a", reward, rollout__workers=1, async__mode="async"))
    ranks = {"model": {**reward["model"], "layout": "t2"}}
    recorded = go(job_with(tmp_path / "b", ranks, rollouts_only=True))
    assert (played.status, recorded.status) == ("finished", "finished")
    samples = [sample for group in seen(tmp_path / "b" / "job.yaml") for sample in group["samples"]]
    assert [sample["reward"] for sample in samples] == pytest.approx(own_scores(reward_model, samples), abs=1e-4)


def test_a_score_that_is_no_number_costs_its_group_and_not_the_run(
    tmp_path: Path, reward_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = FrozenRewardModel.scores

    def broken(self: FrozenRewardModel, micro: MicroBatch) -> Tensor:
        even = torch.stack([part[0] % 2 == 0 for part in micro.tokens.split(micro.lengths)])  # of every other prompt
        return torch.where(even, torch.inf, scores(self, micro))

    monkeypatch.setattr(FrozenRewardModel, "scores", broken)
    job = job_with(tmp_path, {"model": {"path": str(reward_model)}}, async__mode="async")
    ended = go(job)
    assert ended.status == "finished"
    assert [batch.batch for batch in ended.record.batches] == [0, 1, 2]
    assert all(math.isfinite(batch.reward_mean) for batch in ended.record.batches)
    for group in seen(job):
        assert all(sample["tokens"][0] % 2 for sample in group["samples"])
    reasons: Counter[str] = Counter(ended.record.counts.dropped)
    assert reasons["reward_nan"] > 0


@pytest.mark.slow
def test_a_resumed_run_scores_what_the_journal_holds_and_goes_on(tmp_path: Path, reward_model: Path) -> None:
    job = job_with(
        tmp_path,
        {"model": {"path": str(reward_model)}},
        trainer__batches=100_000,
        async__mode="async",
        checkpoint__every=100_000,
    )
    folder = tmp_path / "run"
    process = start("train", job, "--dir", folder)
    end = time.monotonic() + 90
    number = 0
    while number < 4:
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
        if (folder / "run.db").exists():
            with RunReader(folder) as reader:
                number = (reader.version() or (0, 0))[1]
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before = len(seen(job))
    with RunReader(folder) as reader:
        last = reader.version()[1] + 8
    code, out = run("train", job, f"trainer.batches={last}", "--dir", folder, "--resume")
    assert code == 0, out
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["version"]) == ("finished", last)
    samples = [sample for group in seen(job)[before:] for sample in group["samples"]]
    assert len(samples) >= last * 6, "nothing was committed: all that is trained was scored again"
    assert [sample["reward"] for sample in samples] == pytest.approx(own_scores(reward_model, samples), abs=1e-4)


def test_check_shows_the_stage_and_its_lane(
    tmp_path: Path, reward_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = job_with(tmp_path, {"model": {"path": str(reward_model)}})
    assert main(["check", str(job)]) == 0
    out = capsys.readouterr().out
    assert "reward      each row    tokens, loss_mask, scored, episode -> reward" in out
    assert "reward           compute lane 'reward': 1 CPU thread" in out
    assert "reward model: weights" in out
    assert "child process" not in out, "no rule is scored"
    assert main(["check", str(job), "reward.model.placement=process", "rollouts_only=true"]) == 0
    assert "reward           a process of its own" in capsys.readouterr().out


def test_a_model_that_cannot_score_is_refused(tmp_path: Path, reward_model: Path) -> None:
    job = job_with(tmp_path, {"model": {"path": str(tmp_path / "model")}})
    with pytest.raises(ConfigError, match="has 2 classes, and a reward model has one"):
        make_plan(load_config(TrainConfig, job))
    config = AutoConfig.from_pretrained(reward_model)
    config.vocab_size = 99
    other = tmp_path / "other"
    AutoModelForSequenceClassification.from_config(config).save_pretrained(other)
    job = job_with(tmp_path / "b", {"model": {"path": str(other)}})
    with pytest.raises(ConfigError, match=r"reward\.model\.path is .*vocabulary of 99 tokens, and the policy's has"):
        make_plan(load_config(TrainConfig, job))
