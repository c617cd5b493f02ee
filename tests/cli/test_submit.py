"""`headrace submit`: a run as a job of a Ray cluster."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from controller_jobs import make_job
from ray_nodes import JOB_SERVER, job_server
from served_run import until_batch

from headrace.cli import submit
from headrace.config import TrainConfig, load_config
from headrace.controller.shipping import ship
from headrace.store import RunReader

_WAIT_S = 200.0


def test_a_job_takes_functions_along_and_names_the_rest_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_job(tmp_path / "job")
    (tmp_path / "job" / "helper.py").write_text("HALF = 0.5\n")
    given = yaml.safe_load(config.read_text())
    given["reward"]["function"], given["model"]["path"] = "job/reward.py:score", "job/model"
    monkeypatch.chdir(tmp_path)
    into = tmp_path / "job-folder"
    into.mkdir()
    made = yaml.safe_load(ship(load_config(TrainConfig, given, []), into).read_text())
    assert made["reward"]["function"] == "functions/0/reward.py:score"
    assert sorted(path.name for path in (into / "functions" / "0").iterdir()) == ["helper.py", "reward.py"]
    assert made["model"]["path"] == str(tmp_path / "job" / "model")
    assert made["data"]["train"] == str(tmp_path / "job" / "train.jsonl")
    assert {key: made[key] for key in ("trainer", "rollout")} == {key: given[key] for key in ("trainer", "rollout")}
    assert not (into / "functions" / "1").exists()


@pytest.mark.parametrize("version", ["", "@3", "@v3"])
def test_a_run_to_begin_from_is_named_in_full_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    given = yaml.safe_load(make_job(tmp_path / "job").read_text())
    (tmp_path / "runs" / "a").mkdir(parents=True)
    into = tmp_path / "job-folder"
    into.mkdir()
    monkeypatch.chdir(tmp_path)
    given["from"] = {"run": f"runs/a{version}"}
    made = yaml.safe_load(ship(load_config(TrainConfig, given, []), into).read_text())
    assert made["from"]["run"] == f"{tmp_path}/runs/a{version}"


def test_what_a_job_prints_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    class Jobs:
        async def follow(self, job: str, write: Callable[[str], None]) -> int:
            write("one\n\x1b]52;c;cm0gLXJmIH4=\x07two\n")
            return 3

        async def stop(self, job: str) -> None:
            raise AssertionError("nobody said so")

    assert asyncio.run(submit._followed(Jobs(), "job-1")) == 3  # type: ignore[arg-type]
    assert capsys.readouterr().out == "one\n\u241b]52;c;cm0gLXJmIH4=\u2407two\n"


def submitted(config: Path, run: Path, address: str, *more: str) -> list[str]:
    line = [sys.executable, "-m", "headrace.cli.main", "submit", str(config), "--address", address]
    return [*line, "--dir", str(run), *more]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'headrace[cluster]'")
def test_that_no_job_server_answers_is_told(tmp_path: Path) -> None:
    config = make_job(tmp_path / "job")
    line = submitted(config, tmp_path / "run", "http://127.0.0.1:1")
    told = subprocess.run(
        line, capture_output=True, text=True, timeout=60, env={**os.environ, "RAY_AUTH_TOKEN": "0" * 64}
    )
    assert told.returncode == 1
    (said,) = [each for each in told.stderr.splitlines() if each.startswith("headrace: the job")]
    assert said.startswith("headrace: the job server at http://127.0.0.1:1 does not do it: Failed to connect to Ray at")
    assert said.endswith("started with a dashboard (pip install 'headrace[jobs]' there)")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(not all(map(find_spec, ("ray", *JOB_SERVER))), reason="pip install 'headrace[cluster,jobs]'")
def test_a_run_is_a_job_whose_log_and_exit_code_are_the_command_s(tmp_path: Path) -> None:
    config = make_job(tmp_path / "job", runtime__kind="ray", rollout__workers=1)
    (tmp_path / "job" / "reward.py").write_text(
        "from lib.helper import HALF\n\n\ndef score(response, row):\n    return HALF * (len(response) % 3)\n"
    )
    (tmp_path / "job" / "lib").mkdir()
    (tmp_path / "job" / "lib" / "helper.py").write_text("HALF = 0.5\n")
    run = tmp_path / "run"
    with job_server(tmp_path) as (address, environment):
        wrong = {**environment, "RAY_AUTH_TOKEN": "0" * 64}
        refused = subprocess.run(
            submitted(config, run, address), capture_output=True, text=True, timeout=_WAIT_S, env=wrong
        )
        assert refused.returncode == 1
        told = (
            f"headrace: the job server at {address} does not take the token that is sent to it, from RAY_AUTH_TOKEN; "
        )
        assert told in refused.stderr

        process = subprocess.Popen(
            submitted(config, run, address, "trainer.batches=5000"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        try:
            until_batch(run, 3, process)
            process.send_signal(signal.SIGINT)
            out, _ = process.communicate(timeout=_WAIT_S)
        finally:
            process.kill()
        assert process.returncode == 130, out
        assert "batch 1/5000" in out
        with RunReader(run) as reader:
            done = max(int(row.record["batch"]) for row in reader.metrics.read("batch"))

        line = submitted(config, run, address, "--resume", f"trainer.batches={done + 3}")
        ended = subprocess.run(line, capture_output=True, text=True, timeout=_WAIT_S, env=environment)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert f"batch {done + 3}/{done + 3}" in ended.stdout
        assert json.loads((run / "summary.json").read_text())["status"] == "finished"

        bad = submitted(config, run, address)  # the run is there, and nothing says what to do with it
        told = subprocess.run(bad, capture_output=True, text=True, timeout=_WAIT_S, env=environment)
        assert told.returncode == 2, told.stdout + told.stderr
