"""Held-out sets in whole runs: each by its own settings, on one pinned version, again after a kill."""

from __future__ import annotations

import csv
import io
import json
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml
from controller_jobs import make_job, start

from headrace.cli.main import main
from headrace.observe.run_record import Evaluation, RunWatcher
from headrace.store import RunReader

SETS = {
    "votes": {"samples": 4, "temperature": 1.0, "every": 2, "metrics": ["pass@1", "pass@4", "majority"]},
    "short": {"max_new_tokens": 2, "max_prompts": 3},
}


def job_with_sets(folder: Path, **changes: object) -> Path:
    """`votes` is scored by the answer, `short` as training is."""
    sets: dict[str, Any] = {name: {"data": str(folder / "eval.jsonl"), **values} for name, values in SETS.items()}
    sets["votes"]["reward"] = {"function": "exact", "workers": 1}
    return make_job(folder, evaluation__every=3, evaluation__sets=sets, **changes)


def evaluations(run: Path) -> dict[str, tuple[Evaluation, ...]]:
    with RunReader(run) as reader:
        return RunWatcher(reader).read().sets


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run in `sync`, and what it printed."""
    folder = tmp_path_factory.mktemp("evaluated")
    run, printed = folder / "run", io.StringIO()
    job = job_with_sets(folder / "job", track=["csv"])
    with redirect_stdout(printed):
        assert main(["train", str(job), "async.mode=sync", "--dir", str(run), "--plain"]) == 0
    return run, printed.getvalue()


def test_what_a_reward_gives_beside_its_score_is_a_metric_of_the_set(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def score(response, row):\n    return {'score': 0.5, 'letters': float(len(response)), 'flag': 1.0}\n"
    )
    reward = {"function": f"{tmp_path}/mine.py:score", "trusted": True, "workers": 1}
    sets = {"mine": {"data": str(tmp_path / "eval.jsonl"), "reward": reward, "samples": 2, "temperature": 1.0}}
    job = make_job(tmp_path, trainer__batches=1, evaluation__sets=sets, track=["csv"])
    assert main(["train", str(job), "--dir", str(tmp_path / "run"), "--plain"]) == 0
    found = evaluations(tmp_path / "run")["mine"][0]
    assert list(found.metrics) == ["mean", "reward.flag", "reward.letters"]
    assert (found.score, found.metrics["reward.flag"].value, found.metrics["reward.flag"].prompts) == (0.5, 1.0, 4)
    assert found.metrics["reward.letters"].stderr is not None
    with (tmp_path / "run" / "trackers" / "csv" / "evaluations.csv").open() as file:
        columns = next(csv.reader(file))
    assert "eval/mine/reward.letters" in columns


@pytest.mark.slow
@pytest.mark.copied
def test_each_set_has_its_own_settings_and_its_numbers_are_everywhere(
    ran: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, told = ran
    found = evaluations(run)
    assert {name: [each.number for each in of_set] for name, of_set in found.items()} == {
        "eval": [0, 3, 6],
        "votes": [0, 2, 4, 6],
        "short": [0, 3, 6],
    }
    votes, short = found["votes"][-1], found["short"][-1]
    assert (votes.prompts, votes.drawn, votes.failed, votes.label) == (4, 16, 0, "votes pass@1")
    assert list(votes.metrics) == ["pass@1", "pass@4", "majority"]
    assert votes.score == votes.metrics["pass@1"].value
    assert all(each.prompts == 4 and each.stderr is not None for each in votes.metrics.values())
    assert (short.prompts, short.drawn) == (3, 3)
    assert short.response_tokens_mean <= 2
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary["eval"]["sets"]) == {"eval", "votes", "short"}
    assert summary["eval"]["before"] == summary["eval"]["sets"]["eval"]["before"] == found["eval"][0].score
    assert summary["eval"]["seconds"] > 0
    assert summary["eval"]["versions_behind"] <= 1, "in sync the trainer makes the next version and waits"
    assert "eval votes v2  pass@1 0.000 ±0.000  pass@4 0.000 ±0.000  majority 0.000 ±0.000" in told
    assert "prompts 4 x 4" in told
    with (run / "trackers" / "csv" / "evaluations.csv").open() as file:
        rows = {row["step"]: row for row in csv.DictReader(file)}
    assert {"eval/votes/pass_at_4", "eval/votes/majority_stderr", "eval/versions_behind"} <= set(rows["0"])
    assert list(rows) == ["0", "2", "3", "4", "6"], "a row holds all sets of a version"
    for step, held in (("0", {"eval", "votes", "short"}), ("2", {"votes"}), ("3", {"eval", "short"})):
        scores = {"eval": "eval/score", "votes": "eval/votes/score", "short": "eval/short/score"}
        assert {name for name, column in scores.items() if rows[step][column]} == held
    assert main(["inspect", str(run)]) == 0
    assert "votes" in capsys.readouterr().out
    assert main(["plot", str(run), "-o", str(tmp_path / "plot.svg")]) == 0
    assert "evaluation: votes" in (tmp_path / "plot.svg").read_text()


def test_eval_runs_the_same_sets_on_a_run_and_gives_what_the_run_recorded(
    ran: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Noise is of set, prompt and sample: the last checkpoint answers as it did in the run, sampled or greedy."""
    run, _ = ran
    recorded = evaluations(run)
    assert main(["eval", str(run), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["reward_mean"] == pytest.approx(recorded["eval"][-1].score)
    assert result["sets"]["short"]["reward_mean"] == pytest.approx(recorded["short"][-1].score)
    assert result["sets"]["votes"]["response_tokens_mean"] == recorded["votes"][-1].response_tokens_mean
    assert main(["eval", str(run), "--set", "short", "--checkpoint", "4"]) == 0
    assert capsys.readouterr().out.startswith(f"{run / 'checkpoints' / 'step_4' / 'model'}: short: mean reward")
    assert main(["eval", str(run), "--set", "long"]) == 2
    assert "--set is 'long', and the config has the held-out sets eval, short, votes" in capsys.readouterr().err
    assert main(["eval", str(run), "--checkpoint", "5"]) == 2
    assert "give best, last, or a version of" in capsys.readouterr().err


def test_while_an_evaluation_holds_the_engine_versions_go_by_and_are_counted(tmp_path: Path) -> None:
    """In async the trainer goes on: the rewards of version 0's two answers come at once, and those of the next
    evaluation not before version 7's checkpoint is there."""
    run = tmp_path / "run"
    job = make_job(
        tmp_path / "job",
        evaluation__every=4,
        evaluation__max_prompts=2,
        trainer__batches=8,
        checkpoint={"every": 1, "keep": 100},
    )
    (tmp_path / "job" / "slow.py").write_text(
        "import time\nfrom pathlib import Path\n"
        f"STEPS = Path({str(run / 'checkpoints')!r})\n"
        "def newest():\n    return max([0, *(int(path.name[5:]) for path in STEPS.glob('step_?'))])\n"
        "CALLS = []\n"
        "def score(response, row):\n"
        "    CALLS.append(row)\n"
        "    end = time.monotonic() + 40\n"
        "    while len(CALLS) > 2 and newest() <= 6 and time.monotonic() < end:\n        time.sleep(0.02)\n"
        "    return 0.5\n"
    )
    slow = {"function": f"{tmp_path}/job/slow.py:score", "workers": 1, "trusted": True, "timeout_s": 50}
    sets = json.dumps({"slow": {"data": str(tmp_path / "job" / "eval.jsonl"), "reward": slow}})
    arguments = ["async.max_staleness=4", "data.eval=null", f"evaluation.sets={sets}"]
    assert main(["train", str(job), *arguments, "--dir", str(run), "--plain"]) == 0
    found = evaluations(run)["slow"]
    assert all(each.seconds is not None and each.seconds > 0 for each in found)
    behind = max(each.versions_behind or 0 for each in found)
    assert behind >= 1
    summary = json.loads((run / "summary.json").read_text())
    assert summary["eval"]["versions_behind"] == behind
    assert summary["staleness"]["max"] <= 4
    assert (summary["eval"]["before"], summary["eval"]["after"]) == (None, None), "there is no plain set"


@pytest.mark.slow
@pytest.mark.copied
def test_an_evaluation_that_a_kill_cut_off_is_made_again(tmp_path: Path) -> None:
    """`held` hangs in the evaluation of the first version after 0, whose prompts are four; `eval`, which is done, is
    not made again."""
    job = make_job(tmp_path / "job", checkpoint__every=1)
    folder, run = tmp_path / "job", tmp_path / "run"
    (folder / "held.py").write_text(
        "import os, time\n"
        f"ASKED = {str(folder / 'asked')!r}\n"
        "def score(response, row):\n"
        "    with open(ASKED, 'a') as file:\n        file.write('.')\n"
        f"    while os.path.getsize(ASKED) > 4 and os.path.exists({str(folder / 'hold')!r}):\n"
        "        time.sleep(0.05)\n"
        "    return 0.5\n"
    )
    reward = {"function": f"{folder}/held.py:score", "workers": 1, "trusted": True, "timeout_s": 50}
    sets = json.dumps({"held": {"data": str(folder / "eval.jsonl"), "every": 1, "reward": reward}})
    arguments = ["train", str(job), f"evaluation.sets={sets}", "--dir", str(run), "--plain"]
    (folder / "hold").touch()
    process = start(*arguments)
    try:
        wait_for(lambda: (run / "run.db").exists() and "held" in evaluations(run))
        wait_for(lambda: any((run / "checkpoints").glob("step_[2-9]")))
    finally:
        process.kill()
        process.communicate()
    before = evaluations(run)
    assert len(before["eval"]) == 1
    (folder / "hold").unlink()
    assert main([*arguments, "--resume"]) == 0
    with RunReader(run) as reader:
        (restored,) = [row.data["version"] for row in reader.events.read() if row.kind == "started"][1:]
    number = int(restored.split("~")[0].removeprefix("v"))
    found = evaluations(run)
    assert number in [each.number for each in found["held"]], "the version that was restored had no evaluation"
    assert [each.number for each in found["eval"]] == [0, 6]


def wait_for(there: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end
        time.sleep(0.05)


def keeps_best(folder: Path, scores: list[float], **changes: object) -> Path:
    """A job whose set `given` scores 0.1, 0.9, ... in the order in which versions are evaluated, whatever they answer.
    One evaluation asks for one prompt's answer."""
    job = make_job(folder, checkpoint__keep=1, checkpoint__every=100, checkpoint__keep_best="given", **changes)
    (folder / "given.py").write_text(
        "from pathlib import Path\n"
        f"SCORES, ASKED = {scores}, Path({str(folder / 'asked')!r})\n"
        "def score(response, row):\n"
        "    with ASKED.open('a') as file:\n        file.write('.')\n"
        "    return SCORES[len(ASKED.read_text()) - 1]\n"
    )
    reward = {"function": f"{folder}/given.py:score", "workers": 1, "trusted": True}
    config = yaml.safe_load(job.read_text())
    config["evaluation"] = {
        "sets": {"given": {"data": str(folder / "eval.jsonl"), "every": 2, "max_prompts": 1, "reward": reward}}
    }
    job.write_text(yaml.safe_dump(config))
    return job


@pytest.mark.slow
@pytest.mark.copied
@pytest.mark.parametrize("mode", [["async.mode=sync"], ["async.max_staleness=4"]])
def test_the_best_checkpoint_is_that_of_the_best_evaluation(
    mode: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Versions 0, 2, 4, 6, 8 get 0.1, 0.4, 0.9, 0.2, 0.9: version 4 is the best, and the first of its value."""
    run = tmp_path / "run"
    job = keeps_best(tmp_path / "job", [0.1, 0.4, 0.9, 0.2, 0.9], trainer__batches=8)
    assert main(["train", str(job), *mode, "data.eval=null", "--dir", str(run), "--plain"]) == 0
    assert [(each.number, each.score) for each in evaluations(run)["given"]] == [
        (0, 0.1),
        (2, 0.4),
        (4, 0.9),
        (6, 0.2),
        (8, 0.9),
    ]
    best = {"version": 4, "metric": "given/mean", "value": 0.9, "checkpoint": "checkpoints/step_4"}
    assert json.loads((run / "summary.json").read_text())["best"] == best
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["best", "step_4", "step_8"]
    assert (run / "checkpoints" / "best" / "model" / "config.json").is_file()
    assert f"best:    {run}/checkpoints/best/model (v4, given/mean 0.900)" in capsys.readouterr().out
    assert main(["inspect", str(run)]) == 0
    assert "v4, given/mean 0.900: checkpoints/step_4" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.copied
def test_a_resumed_run_knows_the_best(tmp_path: Path) -> None:
    """0.1, 0.9 and 0.2 for versions 0, 2 and 4; then, in another process, 0.5 for version 6."""
    run = tmp_path / "run"
    job = keeps_best(tmp_path / "job", [0.1, 0.9, 0.2, 0.5, 0.3], trainer__batches=6)
    arguments = ["train", str(job), "data.eval=null", "--dir", str(run), "--plain"]
    process = start(*arguments)
    try:
        wait_for(lambda: (run / "run.db").exists() and len(evaluations(run).get("given", ())) >= 3)
    finally:
        process.kill()
        process.communicate()
    assert main([*arguments, "--resume"]) == 0
    with RunReader(run) as reader:
        best = reader.best()
    assert best is not None
    assert (best.number, best.value, best.folder) == (2, 0.9, "step_2")
    assert (run / "checkpoints" / "best" / "model" / "config.json").is_file()


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["checkpoint.keep_best=gsm"], "checkpoint.keep_best is 'gsm', and the held-out sets are eval"),
        (["checkpoint.keep_best=eval"], "but eval is evaluated only before and after training; set evaluation.every"),
        (
            ["checkpoint.keep_best=eval/pass@1", "evaluation.every=2"],
            "the metrics of eval are mean; name one of them, or add it to evaluation.metrics",
        ),
    ],
)
def test_a_best_that_nothing_tells_is_refused(
    overrides: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(make_job(tmp_path / "job")), *overrides]) == 2
    assert says in capsys.readouterr().err
