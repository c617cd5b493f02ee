"""What the offline trainers record: numbers that transformers gives too, held-out rows, and all commands on them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from controller_jobs import make_job, make_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from headrace.cli.main import main
from headrace.observe.offline.record import OfflineStep
from headrace.observe.offline.run_record import OfflineRun, OfflineWatcher
from headrace.store import OfflineStore, RunReader
from headrace.store.media.lock import RunLock
from headrace.training.trainer import HFTrainer

LETTERS = "abcdefgh"
ROWS: dict[str, Any] = {
    "sft": [{"prompt": f"{letter}:", "response": letter.upper() * 2} for letter in LETTERS],
    "dpo": [{"prompt": f"{letter}:", "chosen": letter.upper() * 3, "rejected": letter} for letter in LETTERS],
}
ROWS["rm"] = ROWS["dpo"]
BETA = 0.3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("base") / "model")


def job(folder: Path, model: Path, kind: str, **changes: Any) -> Path:
    for name, rows in (("train", ROWS[kind][:6]), ("eval", ROWS[kind][6:])):
        (folder / f"{kind}_{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config: dict[str, Any] = {
        "model": {"path": str(model), "device": "cpu"},
        "data": {"train": str(folder / f"{kind}_train.jsonl"), "eval": str(folder / f"{kind}_eval.jsonl")},
        "trainer": {
            "samples_per_batch" if kind == "sft" else "pairs_per_batch": 3,
            "optimizer": {"lr": 3e-3},
            "steps": 8,
        },
        "evaluation": {"every": 3},
        "checkpoint": {"every": 4},
        "runtime": {"threads": 1},
        **({"beta": BETA} if kind == "dpo" else {}),
        **changes,
    }
    path = folder / f"{kind}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def read(folder: Path) -> OfflineRun:
    with RunReader(folder) as reader:
        return OfflineWatcher(reader).read()


@torch.no_grad()
def response_logprob(model: Any, tokenizer: Any, prompt: str, response: str) -> tuple[float, float]:
    """Summed over response and end, and the share of these that are the first choice."""
    ids = tokenizer(prompt + response + tokenizer.eos_token, return_tensors="pt")["input_ids"]
    logits = model(ids).logits[0, :-1]
    begin = len(tokenizer(prompt)["input_ids"]) - 1
    targets = ids[0, 1:]
    logprobs = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    first = (logits.argmax(-1) == targets).float()
    return float(logprobs[begin:].sum()), float(first[begin:].mean())


def test_dpo_records_what_transformers_gives(tmp_path: Path, model: Path) -> None:
    """Held-out rows after training: log-probs under the model that was written, and under that which it began with."""
    out = tmp_path / "out"
    assert main(["dpo", str(job(tmp_path, model, "dpo")), "--dir", str(out), "--plain"]) == 0
    run = read(out)
    assert [each.step for each in run.evaluations] == [0, 3, 6, 8]
    found = run.evaluations[-1].measured
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    policy, reference = (AutoModelForCausalLM.from_pretrained(path).eval() for path in (out / "model", model))

    def of(which: Any, side: str) -> list[float]:
        return [response_logprob(which, tokenizer, row["prompt"], row[side])[0] for row in ROWS["dpo"][6:]]

    expected = {
        "chosen_logprob": of(policy, "chosen"),
        "rejected_logprob": of(policy, "rejected"),
        "reference_chosen_logprob": of(reference, "chosen"),
        "reference_rejected_logprob": of(reference, "rejected"),
    }
    for name, values in expected.items():
        assert getattr(found, name) == pytest.approx(sum(values) / 2, abs=1e-4), name
    rewards = [
        [
            BETA * (a - b)
            for a, b in zip(expected[f"{side}_logprob"], expected[f"reference_{side}_logprob"], strict=True)
        ]
        for side in ("chosen", "rejected")
    ]
    margins = [chosen - rejected for chosen, rejected in zip(*rewards, strict=True)]
    assert found.chosen_reward == pytest.approx(sum(rewards[0]) / 2, abs=1e-4)
    assert found.rejected_reward == pytest.approx(sum(rewards[1]) / 2, abs=1e-4)
    assert found.margin == pytest.approx(sum(margins) / 2, abs=1e-4)
    assert found.accuracy == sum(margin > 0 for margin in margins) / 2
    assert found.loss == pytest.approx(sum(math.log1p(math.exp(-margin)) for margin in margins) / 2, abs=1e-4)
    first = run.steps[0].measured
    assert (first.margin, first.accuracy) == (0.0, 0.0), "policy and reference are one before the first step"
    assert first.chosen_logprob == first.reference_chosen_logprob
    assert [step.step for step in run.steps] == list(range(1, 9))
    assert all(step.rows == 3 and step.grad_norm > 0 and step.lr > 0 for step in run.steps)


def test_rm_records_scores(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "out"
    assert main(["rm", str(job(tmp_path, model, "rm")), "--dir", str(out), "--plain"]) == 0
    found = read(out).evaluations[-1].measured
    classifier = AutoModelForSequenceClassification.from_pretrained(out / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(out / "model")

    @torch.no_grad()
    def mean_score(side: str) -> float:
        texts = [row["prompt"] + row[side] + tokenizer.eos_token for row in ROWS["rm"][6:]]
        return sum(float(classifier(tokenizer(text, return_tensors="pt")["input_ids"]).logits) for text in texts) / 2

    bias = found.chosen_reward - mean_score("chosen")
    assert abs(bias) < 0.01, "of the head, which pairs do not train, and the written model has not"
    assert found.rejected_reward - mean_score("rejected") == pytest.approx(bias, abs=1e-4)
    assert found.margin == pytest.approx(mean_score("chosen") - mean_score("rejected"), abs=1e-4)
    assert (found.chosen_logprob, found.reference_chosen_logprob) == (None, None)


def test_sft_records_loss_and_accuracy_of_held_out_tokens(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "out"
    assert main(["sft", str(job(tmp_path, model, "sft")), "--dir", str(out), "--plain"]) == 0
    found = read(out).evaluations[-1].measured
    trained, tokenizer = (kind.from_pretrained(out / "model") for kind in (AutoModelForCausalLM, AutoTokenizer))
    each = [response_logprob(trained.eval(), tokenizer, row["prompt"], row["response"]) for row in ROWS["sft"][6:]]
    assert found.loss == pytest.approx(-sum(total for total, _ in each) / 6, abs=1e-4), "two rows of three tokens"
    assert found.accuracy == pytest.approx(sum(share for _, share in each) / 2)


@pytest.mark.parametrize("kind", ROWS)
def test_every_command_works_on_an_offline_run(
    kind: str, tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main([kind, str(job(tmp_path, model, kind, track=["csv"])), "--dir", str(out), "--plain"]) == 0
    told = capsys.readouterr().out
    assert f"{kind} step 3: held out loss " in told
    assert f"inspect {out}" in told
    summary = json.loads((out / "summary.json").read_text())
    run = read(out)
    assert (summary["kind"], summary["steps"], run.status) == (kind, 8, "finished")
    assert summary["eval"]["after"]["loss"] == run.evaluations[-1].measured.loss
    assert summary["last"]["loss"] == summary["last_loss"] == run.steps[-1].measured.loss
    assert main(["inspect", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "held out" in shown
    assert "loss of each batch" in shown
    assert main(["inspect", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == {name: value for name, value in summary.items() if name != "model"}
    assert main(["inspect", str(out), "--batches"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [OfflineStep.from_json(json.loads(line)) for line in lines] == list(run.steps)
    assert main(["plot", str(out), "-o", str(tmp_path / "plot.svg")]) == 0
    picture = (tmp_path / "plot.svg").read_text()
    assert "held out" in picture
    assert ("margin" in picture) == (kind != "sft")
    with (out / "trackers" / "csv" / "batches.csv").open() as file:
        assert [line.split(",")[0] for line in file] == ["step", *map(str, range(1, 9))]


@pytest.mark.slow
def test_a_resumed_run_takes_back_what_came_after_its_checkpoint(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails at step 6; the checkpoint is of step 4. Steps 5 and 6 are made, and recorded, again."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    config = str(job(tmp_path, model, "dpo", track=["csv"]))
    assert main(["dpo", config, "--dir", str(whole), "--plain"]) == 0
    step = HFTrainer.step

    def failing(self: HFTrainer) -> Any:
        if self.step_count == 6:
            raise RuntimeError("a fault")
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(HFTrainer, "step", failing)
        with pytest.raises(RuntimeError, match="a fault"):
            main(["dpo", config, "--dir", str(out), "--plain"])
    assert (read(out).status, read(out).number) == ("failed", 6)
    assert read(out).error == "RuntimeError: a fault"
    assert main(["dpo", config, "--dir", str(out), "--plain", "--resume"]) == 0
    run = read(out)
    assert run.error is None
    assert [(each.step, each.branch) for each in run.steps] == [(n, 0 if n <= 4 else 1) for n in range(1, 9)]
    assert [(each.step, each.branch) for each in run.evaluations] == [(0, 0), (3, 0), (6, 1), (8, 1)]
    assert [each.measured for each in run.steps] == [each.measured for each in read(whole).steps]
    assert [each.measured for each in run.evaluations] == [each.measured for each in read(whole).evaluations]
    with (out / "trackers" / "csv" / "batches.csv").open() as file:
        assert [line.split(",")[0] for line in file] == ["step", *map(str, range(1, 9))]


def test_a_run_of_headrace_train_is_not_overwritten(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    train = make_job(tmp_path / "job")
    assert main(["train", str(train), "trainer.batches=1", "data.eval=null", "--dir", str(run), "--plain"]) == 0
    capsys.readouterr()
    assert main(["sft", str(job(tmp_path, model, "sft")), "--dir", str(run)]) == 2
    assert f"{run} holds a run of headrace train, which would be overwritten" in capsys.readouterr().err
    out = tmp_path / "out"
    assert main(["sft", str(job(tmp_path, model, "sft")), "--dir", str(out), "--plain"]) == 0
    assert main(["plot", str(run), str(out), "-o", str(tmp_path / "plot.svg")]) == 2
    assert "which record different things; draw them apart" in capsys.readouterr().err


def test_max_rows_and_no_held_out_rows(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = str(job(tmp_path, model, "sft"))
    assert main(["sft", config, "evaluation.max_rows=1", "--dir", str(tmp_path / "one"), "--plain"]) == 0
    assert {each.rows for each in read(tmp_path / "one").evaluations} == {1}
    capsys.readouterr()
    assert main(["sft", config, "data.eval=null", "--dir", str(tmp_path / "none"), "--plain"]) == 0
    assert read(tmp_path / "none").evaluations == ()
    assert "evaluation.every has no effect: data.eval is not set" in capsys.readouterr().err
    assert main(["dpo", str(job(tmp_path, model, "dpo")), "data.eval=/none.jsonl", "--dir", str(tmp_path / "x")]) == 2
    assert "no dataset at /none.jsonl" in capsys.readouterr().err


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    from headrace.store import RunInUse

    options: dict[str, Any] = {"kind": "sft", "config_yaml": "", "config_sha256": "", "now": 0.0, "resumed_at": 0}
    lock = RunLock(tmp_path)
    OfflineStore(lock, **options).close()
    with pytest.raises(RunInUse):
        RunLock(tmp_path)
    lock.release()
    RunLock(tmp_path).release()
