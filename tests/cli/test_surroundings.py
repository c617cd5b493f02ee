"""Where a command is called: a pipe whose reader goes, a full disk, a read-only one, a running event loop, few
processors."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from controller_jobs import make_job

from headrace.cli.main import main
from headrace.controller.building.threads import available_threads

UNREAD = 141
HEADRACE = [sys.executable, "-m", "headrace.cli.main"]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_job(tmp_path_factory.mktemp("job"), trainer__batches=2)


@pytest.fixture(scope="module")
def run(job: Path) -> Path:
    """The folder of a run that is finished."""
    assert main(["train", str(job), "--dir", str(job.parent / "run"), "--plain"]) == 0
    return job.parent / "run"


def unread(*arguments: object) -> tuple[int, str]:
    """Exit code and errors of a command that nobody reads: the other end of its output is closed when it begins."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*HEADRACE, *map(str, arguments)], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120
        )
    finally:
        os.close(writing)
    return done.returncode, done.stderr


@pytest.mark.parametrize("option", [[], ["--json"], ["--batches"]])
def test_inspect_ends_in_silence_when_its_reader_goes(run: Path, option: list[str]) -> None:
    assert unread("inspect", run, *option) == (UNREAD, "")


@pytest.mark.slow
def test_what_a_plan_prints_may_be_cut_off(job: Path) -> None:
    assert unread("train", job, "--dry-run") == (UNREAD, "")


@pytest.mark.slow
def test_training_goes_on_when_nobody_reads(job: Path, tmp_path: Path) -> None:
    assert unread("train", job, "--dir", tmp_path / "run", "--plain") == (0, "")
    assert (tmp_path / "run" / "checkpoints" / "step_2" / "model").is_dir()
    data = tmp_path / "sft.jsonl"
    data.write_text('{"prompt": "1+1=", "response": "2"}\n' * 4)
    config = tmp_path / "sft.yaml"
    model = job.parent / "model"
    config.write_text(f"model: {{path: {model}}}\ndata: {{train: {data}}}\ntrainer: {{samples_per_batch: 1}}\n")
    assert unread("sft", config, "--dir", tmp_path / "sft") == (0, "")
    assert (tmp_path / "sft" / "model").is_dir()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("unbuffered", [False, True])
def test_output_to_a_full_disk_is_one_error(run: Path, unbuffered: bool) -> None:
    surroundings = os.environ | {"PYTHONUNBUFFERED": "1" if unbuffered else ""}
    command = [*HEADRACE, "inspect", str(run), "--json"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=surroundings)
    assert (done.returncode, done.stderr) == (1, "headrace: no space left to write the output; free some\n")


@pytest.mark.slow
def test_a_run_on_a_read_only_disk_cannot_be_resumed_and_says_so(job: Path, run: Path) -> None:
    walls = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    mount = f"mount --bind {run} {run} && mount -o remount,ro,bind {run}"
    if shutil.which("unshare") is None or subprocess.run([*walls, mount], timeout=30).returncode:
        pytest.skip("file systems cannot be mounted here")
    command = shlex.join([*HEADRACE, "train", str(job), "trainer.batches=3", "--dir", str(run), "--resume"])
    done = subprocess.run([*walls, f"{mount} && exec {command}"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr == (
        f"headrace: cannot write {run}/run.lock: Read-only file system; check the disk and the folder's permissions\n"
    )


@pytest.mark.filterwarnings("error")
def test_a_call_in_a_running_event_loop_says_what_to_do(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def call(*arguments: object) -> int:
        return main([*map(str, arguments)])

    for arguments in (
        ("check", job),
        ("eval", job),
        ("train", job, "--dir", tmp_path / "run"),
        ("serve", job.parent / "model", "--port", 0),
        ("doctor",),
    ):
        assert asyncio.run(call(*arguments)) == 2
        out, err = capsys.readouterr()
        assert out == "" or arguments == ("doctor",)
        assert "needs an event loop of its own, and is called where one runs already" in err
        assert "as headrace.train, or run it from a shell (in a notebook: !headrace ...)" in err
        assert len(err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_more_threads_than_processors_can_serve_are_refused(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    most = 8 * available_threads(None)
    for arguments in (["check", str(job)], ["train", str(job), "--dir", "none"]):
        assert main([*arguments, "runtime.threads=100000"]) == 2
        said = capsys.readouterr().err
        assert f"runtime.threads is 100000, and this process has {available_threads(None)} processor(s)" in said
        assert f"more than {most} threads" in said
    assert main(["check", str(job), f"runtime.threads={most}"]) == 0


@pytest.mark.parametrize("command", ["sft", "rm", "dpo"])
def test_offline_trainers_refuse_them_too(
    command: str, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(f"model: {{path: {job.parent}/model}}\ndata: {{train: none.jsonl}}\n")
    assert main([command, str(config), "runtime.threads=100000", "--dir", str(tmp_path / "out")]) == 2
    assert "runtime.threads is 100000" in capsys.readouterr().err


def test_empty_arguments_are_no_defaults(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a shell gives them whose variable is not set."""
    assert main(["train", str(job), "--dir", ""]) == 2
    assert "--dir is empty; give a folder" in capsys.readouterr().err
    assert main(["eval", str(job), "--model", ""]) == 2
    assert "model folder '' does not exist" in capsys.readouterr().err
