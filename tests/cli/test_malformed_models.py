"""Malformed models: each gets one message that names the fault, from every command, and nobody
sees a traceback. To add one is to add a line to a table of `cli_malformed_cases.py`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cli_malformed_cases import CASES, Case, Job
from controller_jobs import make_job

from headrace.cli.main import main
from headrace.models.hub import offline_snapshot

Captured = pytest.CaptureFixture[str]
CHECKED = [pytest.param(case, id=case.name) for case in CASES if "check" in case.commands]
LOADED = [pytest.param(case, id=case.name) for case in CASES if "check" not in case.commands]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_job(tmp_path_factory.mktemp("good") / "job").parent


@pytest.fixture
def job(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A copy of a good job at a place of its own. The Hub is at a port where nobody listens."""
    made = Job(tmp_path / "job")
    shutil.copytree(good, made.folder)
    made.config.write_text(made.config.read_text().replace(str(good), str(made.folder)))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    offline_snapshot.cache_clear()
    return made


def run(job: Job, command: str) -> int:
    """Through the command's entry point."""
    if command == "serve":
        return main(["serve", str(job.model), "--port", "0"])
    place = ["--dir", str(job.folder / "run"), "--plain"] if command == "train" else []
    return main([command, str(job.config), *place])


def assert_refused(job: Job, case: Case, command: str, captured: Captured) -> None:
    code = run(job, command)
    out, err = captured.readouterr()
    assert (code, out) == (2, ""), (command, err)
    assert err.startswith("headrace: "), (command, err)
    assert err.count("\n") == 1, f"{command} says more than one thing: {err}"
    says = case.says.replace("{model}", repr(str(job.model))).replace("{folder}", str(job.folder))
    assert says in err, (command, err)


def test_there_are_forty_cases_and_no_two_of_one_name() -> None:
    assert len(CASES) == len({case.name for case in CASES}) >= 40


def test_the_job_is_good(job: Job, capfd: Captured) -> None:
    assert run(job, "check") == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("case", CHECKED)
def test_check_says_what_is_wrong(case: Case, job: Job, capfd: Captured) -> None:
    case.spoil(job)
    assert_refused(job, case, "check", capfd)


@pytest.mark.parametrize("case", LOADED)
def test_whoever_loads_the_weights_says_what_is_wrong_with_them(case: Case, job: Job, capfd: Captured) -> None:
    case.spoil(job)
    for command in case.commands:
        assert_refused(job, case, command, capfd)


@pytest.mark.slow
@pytest.mark.parametrize("case", CHECKED)
def test_every_other_command_says_it_too(case: Case, job: Job, capfd: Captured) -> None:
    case.spoil(job)
    for command in case.commands[1:]:
        assert_refused(job, case, command, capfd)
