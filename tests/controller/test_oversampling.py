"""Over-sampling and dynamic sampling in whole runs: every batch is full, or the run says why it cannot be."""

import json
import re
from pathlib import Path

import pytest
from controller_jobs import make_job, run

from headrace.cli.main import main
from headrace.store import RunReader

BATCHES, BATCH = 6, 2


@pytest.mark.parametrize(("mode", "bound"), [("sync", 0), ("async", 2)])
def test_every_batch_is_full_and_the_surplus_comes_again(tmp_path: Path, mode: str, bound: int) -> None:
    job = make_job(tmp_path / "job", async__mode=mode, rollout__oversample=1.5, rollout__filters=[])
    folder = tmp_path / "run"
    assert main(["train", str(job), "--dir", str(folder), "--plain"]) == 0
    summary = json.loads((folder / "summary.json").read_text())
    with RunReader(folder) as reader:
        reader.counts().check()
        sizes = [row.record["groups"] for row in reader.metrics.read("batch")]
    assert sizes == [BATCH] * BATCHES
    assert summary["staleness"]["max"] <= bound
    groups = summary["groups"]
    assert groups["trained"] == BATCH * BATCHES
    assert set(groups["dropped"]) <= {"again: surplus", "exhausted (surplus)"}
    surplus = sum(groups["dropped"].values())
    assert surplus == BATCHES - 1 if mode == "sync" else surplus <= BATCHES - 1, "one a batch, but for the last"


@pytest.mark.slow
@pytest.mark.copied
def test_rewards_that_never_differ_end_the_run_with_the_reason_and_it_can_go_on(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", rollout__max_drops_per_batch=5, trainer__batches=2)
    reward = tmp_path / "job" / "reward.py"
    varied = reward.read_text()
    reward.write_text("def score(response, row):\n    return 0.5\n")
    folder = tmp_path / "run"
    code, out = run("train", job, "--dir", folder)
    assert code == 1, out
    assert "groups were dropped while batch 0 was composed (zero_spread " in out
    assert re.search(
        r"The last one had the prompt '.+=', an answer of '.+', and the reward [\d.]+ for its \d+ samples", out
    )
    assert "--resume" in out
    assert "Traceback" not in out
    assert "never retrieved" not in out
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert summary["groups"]["dropped"]["zero_spread"] >= 5

    reward.write_text(varied)
    code, out = run("train", job, "rollout.max_drops_per_batch=50", "--dir", folder, "--resume")
    assert code == 0, out
    with RunReader(folder) as reader:
        reader.counts().check()
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["status"], summary["groups"]["trained"]) == ("finished", 4)
