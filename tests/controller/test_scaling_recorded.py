"""More and fewer engines and rollout workers while a run only records, by the command, in real processes."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from controller_jobs import make_job, start
from forked import Forked

from headrace.cli.main import main
from headrace.controller.control_socket import NAME
from headrace.store import RunReader

BATCHES = 45


def until(run: Path, batches: int, process: Forked) -> int:
    """So many more are recorded."""
    end, first = time.monotonic() + 120, None
    while True:
        assert process.poll() is None, process.communicate()[0][-3000:]
        assert time.monotonic() < end
        if (run / "run.db").exists():
            with RunReader(run) as reader:
                done = reader.committed()
            first = done if first is None else first
            if done >= first + batches:
                return done
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_a_run_that_only_records_gets_more_hands_and_gives_them_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("import time\n\n\ndef reward(response, row):\n    time.sleep(0.05)\n    return len(response) % 7\n")
    job = make_job(
        tmp_path / "job",
        reward__function=f"{slow}:reward",
        trainer__batches=BATCHES,
        data__eval=None,
        rollout__workers=1,
        engine__process="true",
    )
    run = tmp_path / "run"
    process = start("train", job, "--dir", run, "--plain", "--rollouts-only")
    try:
        until(run, 2, process)
        assert main(["scale", str(run), "--engines", "2", "--rollout-workers", "2"]) == 0
        said = capsys.readouterr().out
        assert "engines: 2\nasync.ahead stays at" in said
        assert said.endswith("rollout workers: 2\n")
        with RunReader(run) as reader:
            (added,) = [event.data for event in reader.events.read() if event.kind == "engine_added"]
        assert (added["engine"], added["version"]) == (1, "v0")
        until(run, 3, process)
        assert main(["scale", str(run), "--engines", "1", "--rollout-workers", "1"]) == 0
        until(run, 3, process)
        out, _ = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, out[-3000:]
    with RunReader(run) as reader:
        reader.counts().check()
        assert reader.committed() == BATCHES
        events = [*reader.events.read()]
        records = [row.record for row in reader.metrics.read("batch")]
    assert not any(record["failed_samples"] for record in records)
    kinds = Counter(event.kind for event in events)
    assert (kinds["engine_added"], kinds["engine_removed"], kinds["engine_died"]) == (1, 1, 0)
    scaled = [(event.data["what"], event.data["count"]) for event in events if event.kind == "scaled"]
    assert scaled == [("engines", 2), ("rollout workers", 2), ("engines", 1), ("rollout workers", 1)]
    assert not (run / NAME).exists()
