"""A language model judges in a run: on an engine of its own beside the policy's, or the policy itself."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from controller_jobs import make_job
from judge_models import make_judge
from transformers import AutoModelForCausalLM, AutoTokenizer

from headrace.cli.main import main
from headrace.config import ConfigError, TrainConfig, load_config
from headrace.controller.evaluate import evaluate
from headrace.controller.planning.out_of_memory import OutOfMemory
from headrace.controller.planning.plan import make_plan
from headrace.controller.train import Ended, train
from headrace.engines.embedded.core import EngineCore
from headrace.experience.drops import NothingToTrain
from headrace.store import RunReader

PROMPT = "{prompt} {answer} {response}? "
FILTER = """
import json
def keep(group):
    with open(__file__ + ".seen", "a") as file:
        for sample in group.samples:
            chosen = sample.tokens[sample.loss_mask].tolist()
            file.write(json.dumps([group.prompt_id, chosen, sample.reward, sample.failure]) + "\\n")
    return True
"""

KILLS_THE_JUDGE = """
import psutil
keeps, groups = keep, []
def keep(group):
    groups.append(group)
    if len(groups) == 4:
        run = psutil.Process() if "rollout/" not in " ".join(psutil.Process().cmdline()) else psutil.Process().parent()
        (judge,) = [each for each in run.children() if "judge/0" in " ".join(each.cmdline())]
        judge.kill()
    return keeps(group)
"""


def job_with(folder: Path, judge: dict[str, Any], **changes: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "keep.py").write_text(FILTER)
    asked = {"prompt": PROMPT, "pattern": "([0-9])", "low": 0, "high": 9, "max_new_tokens": 3, "timeout_s": 60, **judge}
    settings: dict[str, object] = {
        "trainer__batches": 3,
        "runtime__threads": 2,
        "rollout__filters": [f"{folder}/keep.py:keep"],
        "reward": {"function": "judge", "judge": asked},
        "evaluation__max_prompts": 2,
        **changes,
    }
    return make_job(folder, **settings)


def go(job: Path) -> Ended:
    return asyncio.run(train(make_plan(load_config(TrainConfig, job)), job.parent / "run", "new"))


def events_of(job: Path) -> list[Any]:
    with RunReader(job.parent / "run") as reader:
        return list(reader.events.read())


def seen(job: Path) -> list[list[Any]]:
    """(prompt id, response's tokens, reward, failure) of each sample that the filter saw."""
    return [json.loads(line) for line in (job.parent / "keep.py.seen").read_text().splitlines()]


def judges_made(monkeypatch: pytest.MonkeyPatch) -> list[EngineCore]:
    """The judges' engines, as they are made."""
    begin, judges = EngineCore.__init__, []

    def begins(self: EngineCore, model: Any, *others: Any) -> None:
        begin(self, model, *others)
        if model.config.model_type == "llama":
            judges.append(self)

    monkeypatch.setattr(EngineCore, "__init__", begins)
    return judges


@torch.no_grad()
def answer_of(judge: Path, question: str) -> str:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(judge).eval(), AutoTokenizer.from_pretrained(judge)
    ids = tokenizer(question, return_tensors="pt")["input_ids"]
    made = model.generate(ids, max_new_tokens=3, do_sample=False, attention_mask=torch.ones_like(ids))
    return str(tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True))


@pytest.mark.slow
@pytest.mark.copied
def test_a_judge_of_its_own_gives_the_rewards(tmp_path: Path) -> None:
    judge = make_judge(tmp_path / "judge", says_digits=True)
    job = job_with(tmp_path / "job", {"model": str(judge)})
    ended = go(job)
    assert ended.status == "finished"
    assert [batch.batch for batch in ended.record.batches] == [0, 1, 2]
    rows = [json.loads(line) for line in (tmp_path / "job" / "train.jsonl").read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "job" / "model")
    samples = seen(job)
    for prompt_id, chosen, reward, failure in samples[:12]:
        row = rows[int(prompt_id) - 1]
        response = tokenizer.decode(chosen, skip_special_tokens=True)
        answer = answer_of(judge, f"{row['prompt']} {row['answer']} {response}? ")
        assert failure is None
        assert reward == pytest.approx(int([c for c in answer if c.isdigit()][-1]) / 9)
    assert len({reward for _, _, reward, _ in samples}) > 1, "it does not say the same of all"
    assert all(evaluation.score is not None for evaluation in ended.record.evaluations)


@pytest.mark.slow
@pytest.mark.copied
def test_it_computes_beside_generation_and_training(tmp_path: Path) -> None:
    """By the trace."""
    judge = {"model": str(make_judge(tmp_path / "judge", says_digits=True)), "max_new_tokens": 24}
    changes = {"trainer__batches": 16, "rollout__samples_per_prompt": 6, "runtime__trace": True}
    assert go(job_with(tmp_path / "job", judge, **changes)).status == "finished"
    events = json.loads((tmp_path / "job" / "run" / "trace.json").read_text())["traceEvents"]
    spans = [(e["name"], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X"]
    assert any(
        a == "judge" and b in ("engine", "trainer") and begin < end_b and begin_b < end
        for a, begin, end in spans
        for b, begin_b, end_b in spans
    )


@pytest.mark.slow
@pytest.mark.copied
def test_a_judge_that_says_no_number_fails_every_sample_with_that_reason(tmp_path: Path) -> None:
    judge = make_judge(tmp_path / "judge", says_digits=False)
    job = job_with(tmp_path / "job", {"model": str(judge)}, rollout__max_drops_per_batch=4)
    with pytest.raises(NothingToTrain, match=r"samples failed, the last one with .reward_judge: no number"):
        go(job)
    assert not (tmp_path / "job" / "keep.py.seen").exists()
    result = asyncio.run(evaluate(make_plan(load_config(TrainConfig, job))))["eval"]
    assert (result["reward_mean"], result["failed"]) == (None, 2)


def test_the_policy_judges_itself(tmp_path: Path) -> None:
    judge = make_judge(tmp_path / "policy", says_digits=True)
    job = job_with(tmp_path / "job", {}, model__path=str(judge), trainer__optimizer={"lr": 1e-6})
    assert go(job).status == "finished"
    rewards = [reward for _, _, reward, failure in seen(job) if failure is None]
    assert rewards
    assert all(round(reward * 9, 6) in range(10) for reward in rewards)


@pytest.mark.slow
@pytest.mark.copied
def test_several_are_added_to_other_terms(tmp_path: Path) -> None:
    judge = make_judge(tmp_path / "judge", says_digits=True)
    asked = {"model": str(judge), "prompt": PROMPT, "pattern": "([0-9])", "max_new_tokens": 2, "timeout_s": 60}
    other = {"model": str(make_judge(tmp_path / "other", says_digits=True))}
    terms = [
        {"function": "judge", "judge": asked, "weight": 0.0},
        {"function": "judge", "judge": {**asked, **other}, "weight": 0.0},
        {"function": "regex", "answer": "", "weight": 0.5},
    ]
    job = job_with(tmp_path / "job", {}, reward={"terms": terms}, trainer__batches=1)
    assert go(job).status == "finished"
    assert {reward for _, _, reward, _ in seen(job)} == {0.5}


@pytest.mark.slow
@pytest.mark.copied
def test_a_judge_that_dies_ends_the_run_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = make_judge(tmp_path / "judge", says_digits=True)
    judges, step = judges_made(monkeypatch), EngineCore.step

    def dies(self: EngineCore) -> list[Any]:
        if self in judges:
            raise MemoryError("no memory left")
        return step(self)

    monkeypatch.setattr(EngineCore, "step", dies)
    job = job_with(tmp_path / "job", {"model": str(judge)})
    with pytest.raises(OutOfMemory, match=rf"memory ran out \(the engine of judge {judge} died\); lower .*--resume"):
        go(job)
    monkeypatch.undo()
    begin_again = make_plan(load_config(TrainConfig, job))
    assert asyncio.run(train(begin_again, job.parent / "run", "resume")).status == "finished"


@pytest.mark.slow
@pytest.mark.copied
def test_a_judge_that_dies_comes_back_and_costs_no_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the same weights: what it says is what it would have said."""
    judge = make_judge(tmp_path / "judge", says_digits=True)
    changes = {"async__mode": "sync", "data__shuffle": "false", "trainer__batches": 4}
    quiet = job_with(tmp_path / "quiet", {"model": str(judge)}, **changes)
    assert go(quiet).status == "finished"
    judges, steps, step = judges_made(monkeypatch), [], EngineCore.step

    def dies(self: EngineCore) -> list[Any]:
        if self in judges:
            steps.append(self)
            if len(steps) in (4, 5, 12):
                raise MemoryError("no memory left")
        return step(self)

    monkeypatch.setattr(EngineCore, "step", dies)
    job = job_with(tmp_path / "job", {"model": str(judge)}, **changes)
    assert go(job).status == "finished"
    assert sorted(seen(job)) == sorted(seen(quiet))
    assert all(failure is None for _, _, _, failure in seen(job))
    kinds = [(event.kind, event.data.get("judge")) for event in events_of(job)]
    assert kinds.count(("engine_died", str(judge))) == kinds.count(("engine_back", str(judge))) == 3


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.soak), 1])
def test_a_judge_whose_process_is_killed_comes_back_too(tmp_path: Path, workers: int) -> None:
    """Asked by the controller, and by a rollout worker."""
    judge = make_judge(tmp_path / "judge", says_digits=True)
    changes = {"engine__process": "true", "trainer__batches": 4, "rollout__workers": workers}
    job = job_with(tmp_path / "job", {"model": str(judge)}, **changes)
    (job.parent / "keep.py").write_text(FILTER + KILLS_THE_JUDGE)
    assert go(job).status == "finished"
    assert all(failure is None for _, _, _, failure in seen(job))
    kinds = [event.kind for event in events_of(job)]
    assert kinds.count("engine_died") == kinds.count("engine_back") == 1
    assert "failed_sample" not in kinds


def test_check_shows_the_judge_and_starts_no_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = make_judge(tmp_path / "judge", says_digits=True)
    job = job_with(tmp_path / "job", {"model": str(judge)})
    monkeypatch.setattr(EngineCore, "__init__", None)
    assert main(["check", str(job)]) == 0
    out = capsys.readouterr().out
    assert f"judge            compute lane 'judge': 1 CPU thread, {judge}" in out
    assert f"judge {judge}: KV cache" in out


@pytest.mark.parametrize(
    ("judge", "words"),
    [
        ({"model": "nowhere/at/all"}, "model folder 'nowhere/at/all' does not exist"),
        ({"max_new_tokens": 96}, "a judge has max_new_tokens 96, and its context holds 96 tokens"),
        ({"prompt": "{response} {gold}"}, "has no value in column 'gold'"),
    ],
)
def test_a_judge_that_could_not_judge_is_refused_by_the_plan(tmp_path: Path, judge: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_plan(load_config(TrainConfig, job_with(tmp_path, judge)))
