"""Runs keep samples to be looked at, and `headrace rollouts` finds them."""

import json
from pathlib import Path

import numpy as np
import pytest
from controller_jobs import make_job

from headrace.cli.commands import make_parser
from headrace.cli.main import main
from headrace.experience.records.rollout_codec import decode_detail
from headrace.store import RunReader
from headrace.store.rollouts import ORDERS, Query, Rollout, RolloutsReader
from headrace.viewer.rollouts import find


def read(folder: Path, query: Query | None = None) -> list[Rollout]:
    with RolloutsReader(folder) as reader:
        return reader.read(query or Query())


def trained(folder: Path, **changes: object) -> Path:
    job = make_job(folder, trainer__batches=4, rollout__filters=[], **changes)
    assert main(["train", str(job), "--dir", str(folder / "run"), "--plain"]) == 0
    return folder / "run"


def test_some_of_each_batch_are_kept_with_their_numbers(tmp_path: Path) -> None:
    """Batches of 6 samples, of which 4 are kept: the best, the worst, and more of a group."""
    run = trained(tmp_path, record__rollouts=4, async__mode="sync")
    kept = read(run)
    assert [sum(one.batch == batch for one in kept) for batch in range(4)] == [4, 4, 4, 4]
    for one in kept:
        detail = decode_detail(one.data)
        assert [turn.by_policy for turn in one.turns] == [False, True]
        assert one.turns[0].text.endswith("=")
        assert one.status in ("completed", "truncated")
        assert one.staleness == 0
        assert detail.trained is not None
        assert detail.trainer_logprobs is not None
        gap = np.abs(detail.trainer_logprobs - detail.logprobs)[detail.trained]
        assert gap.max() < 1e-5, "on-policy the trainer agrees with the engine"
        assert one.advantage == pytest.approx(float(detail.advantages[detail.loss_mask].mean()))  # type: ignore[index]
    with RunReader(run) as reader:
        means = {row.record["batch"]: row.record["reward_mean"] for row in reader.metrics.read("batch")}
    for batch, mean in means.items():
        rewards = [one.reward for one in kept if one.batch == batch]
        assert min(rewards) <= mean <= max(rewards), "the best and the worst are among them"  # type: ignore[type-var]


@pytest.mark.parametrize("changes", [
    {"algorithm__epochs_per_batch": 2},
    {"algorithm__updates_per_batch": 2, "algorithm__proximal": "recompute"},
    {"algorithm__recipe": "ppo"},
])  # fmt: skip
def test_the_trainers_logprobs_are_those_of_the_batchs_start(tmp_path: Path, changes: dict[str, object]) -> None:
    run = trained(tmp_path, record__rollouts="all", async__mode="sync", trainer__optimizer={"lr": 1e-2}, **changes)
    kept = read(run)
    assert len(kept) == 24
    for one in kept:
        detail = decode_detail(one.data)
        assert detail.trainer_logprobs is not None
        assert detail.trained is not None
        assert np.abs(detail.trainer_logprobs - detail.logprobs)[detail.trained].max() < 1e-5


def test_every_order_can_be_asked_for() -> None:
    (commands,) = (action.choices for action in make_parser()._actions if action.dest == "command")
    (sort,) = (action for action in commands["rollouts"]._actions if action.dest == "sort")
    assert tuple(sort.choices) == ORDERS


def test_none_are_kept_where_none_are_wanted(tmp_path: Path) -> None:
    run = trained(tmp_path, record__rollouts=0)
    assert not RolloutsReader.exists(run) or read(run) == []


@pytest.mark.slow
@pytest.mark.copied
def test_every_sample_that_failed_is_kept_and_some_of_what_was_dropped(tmp_path: Path) -> None:
    job = make_job(tmp_path, trainer__batches=5, record__rollouts=2, rollout__max_attempts=2)
    (tmp_path / "reward.py").write_text(
        "def score(response, row):\n"
        "    if row['prompt'][0] in '1357':\n        raise ValueError('odd')\n"
        "    return 0.5 if row['prompt'][0] in '26' else sum(map(ord, response)) % 7 / 7\n"
    )
    assert main(["train", str(job), "--dir", str(tmp_path / "run"), "--plain"]) == 0
    failed = read(tmp_path / "run", Query(statuses=("failed",)))
    with RunReader(tmp_path / "run") as reader:
        (totals,) = reader.metrics.newest_of_branches("totals")
    assert len(failed) == sum(totals.record["failed_samples"].values()) > 0
    assert all("odd" in str(one.reason) for one in failed)
    assert all(one.turns[0].text[0] in "1357" for one in failed)
    dropped = read(tmp_path / "run", Query(statuses=("dropped",)))
    assert {one.reason for one in dropped} == {"zero_spread"}
    assert max(sum(one.batch == batch for one in dropped) for batch in range(5)) <= 2


def test_samples_of_held_out_prompts_that_failed_are_kept_though_they_end_the_run(tmp_path: Path) -> None:
    """The first evaluation comes before any training, so a reward that never works fails there."""
    (tmp_path / "mine.py").write_text("def boom(response, row):\n    return 1 / 0\n")
    job = make_job(tmp_path, reward__function=f"{tmp_path}/mine.py:boom", reward__trusted=True)
    assert main(["train", str(job), "--dir", str(tmp_path / "run"), "--plain"]) == 1
    failed = read(tmp_path / "run", Query(statuses=("failed",)))
    kept = [one for one in failed if one.prompt_id.startswith("eval/")]
    assert len(kept) == 4, "one answer to each of four prompts"
    assert all("ZeroDivisionError" in (one.reason or "") for one in kept)
    assert all(one.turns[1].text for one in kept), "what the policy wrote is there to be read"


@pytest.mark.slow
@pytest.mark.copied
def test_a_record_that_cannot_be_written_costs_a_warning(tmp_path: Path) -> None:
    job = make_job(tmp_path, trainer__batches=3)
    assert main(["train", str(job), "--dir", str(tmp_path / "run"), "--plain", "trainer.batches=2"]) == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "rollouts.db").write_bytes(b"no database" * 400)
    assert main(["train", str(job), "--dir", str(tmp_path / "other"), "--plain"]) == 0
    with RunReader(tmp_path / "other") as reader:
        said = [event.data["message"] for event in reader.events.read() if event.kind == "rollouts_not_kept"]
    assert len(said) == 1
    assert "rollouts.db is damaged" in said[0]
    assert "--fresh" not in said[0]


def test_what_the_journal_still_holds_is_found_too(tmp_path: Path) -> None:
    """A run that is still under way, or was killed: all since the last checkpoint."""
    run = trained(tmp_path, record__rollouts=1, checkpoint={"every": 100})
    with RunReader(run) as reader:
        journalled = sum(1 for _ in reader.journalled())
    kept, found = read(run), find(run, Query())
    assert len(kept) == 4
    if journalled:
        assert len(found) > len(kept)
    assert {(one.key, one.episode) for one in kept} <= {(one.key, one.episode) for one in found}


def test_a_damaged_record_of_rollouts_costs_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    run = trained(tmp_path, record__rollouts=1, checkpoint={"every": 100})
    for part in run.glob("rollouts.db*"):
        part.unlink()
    (run / "rollouts.db").write_bytes(b"garbage" * 700)
    with RunReader(run) as reader:
        journalled = any(True for _ in reader.journalled())
    capsys.readouterr()
    assert main(["rollouts", str(run)]) == 0
    assert ("group " in capsys.readouterr().out) == journalled
    assert "rollouts.db is damaged" in caplog.text
    assert "delete it: nothing is restored from it; what the journal still holds is shown" in caplog.text


def test_the_command_finds_and_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path, record__rollouts="all")
    capsys.readouterr()

    def said(*arguments: str) -> str:
        assert main(["rollouts", str(run), *arguments]) == 0
        return capsys.readouterr().out

    lines = [json.loads(line) for line in said("--json").splitlines()]
    assert len(lines) == 24
    best = [json.loads(line)["reward"] for line in said("--best", "--json").splitlines()]
    assert best == sorted(best, reverse=True)
    worst = [json.loads(line)["reward"] for line in said("--worst", "--json", "--limit", "3").splitlines()]
    assert worst == sorted(best)[:3]
    assert {json.loads(line)["batch"] for line in said("--batch", "1:2", "--json").splitlines()} == {1, 2}
    prompt = lines[0]["prompt_id"]
    assert {json.loads(line)["prompt_id"] for line in said("--prompt", prompt, "--json").splitlines()} == {prompt}
    word = lines[0]["turns"][1]["text"][:4]
    found = [
        json.loads(line) for line in said("--grep", "^.*" + "".join(f"[{c}]" for c in word), "--json").splitlines()
    ]
    assert any(one["turns"][1]["text"].startswith(word) for one in found)
    shown = said("--best", "--limit", "1")
    assert f"reward {best[0]:.4g}" in shown
    assert "no rollout is like that" in said("--failed")
    page = tmp_path / "page.html"
    assert said("--html", str(page), "--batch", "3") == f"6 rollouts: {page}\n"
    assert page.read_text().count("<article") == 6


@pytest.mark.slow
@pytest.mark.copied
@pytest.mark.parametrize(("arguments", "words"), [
    (["--batch", "x"], "--batch is 'x'; give a batch, as 12, or a range"),
    (["--batch", "5:2"], "--batch is '5:2', which holds none; give the lower one first: 2:5"),
    (["--html", "/nonexist/x.html"], "--html /nonexist/x.html: there is no folder /nonexist; make it"),
    (["--html", "/tmp"], "--html /tmp is a folder; give a file, as /tmp/rollouts.html"),
    (["--html", "/proc/x.html"], "cannot write /proc/x.html: "),
    (["--limit", "0"], "--limit is 0; give 1 or more"),
    (["--grep", "("], "--grep is '(', which is no regular expression"),
])  # fmt: skip
def test_bad_input_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    run = trained(tmp_path)
    assert main(["rollouts", str(run), *arguments]) in (1, 2)
    assert words in capsys.readouterr().err
