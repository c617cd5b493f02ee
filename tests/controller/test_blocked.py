"""A workflow that blocks the event loop: the run says so, in its record too, and can be ended and resumed."""

import signal
import time
from pathlib import Path

import pytest
from controller_jobs import make_job, run, start

from headrace.store import EventRow, RunReader

THINK = """
import itertools, time
from pathlib import Path
from headrace.rollout.single_turn import SingleTurn

class Think(SingleTurn):
    async def run(self, prompt, policy):
        if not (Path(__file__).parent / "mended").exists():
            BLOCK
        return await super().run(prompt, policy)
"""
LINE = THINK.splitlines().index("            BLOCK") + 1


IN_C = "sum(itertools.repeat(0, 10**13))"
"""Holds the interpreter's lock for a day, and looks at no signals."""


def blocking_job(tmp_path: Path, block: str) -> Path:
    own = f"{tmp_path}/job/think.py:Think"
    job = make_job(tmp_path / "job", rollout__workflow=own, rollout__workers=0, data__eval=None)
    (tmp_path / "job" / "think.py").write_text(THINK.replace("BLOCK", block))
    return job


def wait_for_event(folder: Path, kind: str, seconds: float = 120) -> EventRow:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (folder / "run.db").exists():
            with RunReader(folder) as reader:
                for event in reader.events.read():
                    if event.kind == kind:
                        return event
        time.sleep(0.1)
    raise AssertionError(f"there is no event {kind} within {seconds} s")


@pytest.mark.slow
@pytest.mark.parametrize(
    "block", [pytest.param("time.sleep(86400)", marks=pytest.mark.soak), IN_C], ids=["sleeps", "in C"]
)
def test_a_blocked_loop_is_told_recorded_ended_by_a_second_signal_and_resumed(block: str, tmp_path: Path) -> None:
    job = blocking_job(tmp_path, block)
    folder, file = tmp_path / "run", tmp_path / "job" / "think.py"
    process = start("train", job, "trainer.batches=2", "--dir", folder)
    place = f"at {file}, line {LINE}, in run (rollout.workflow)"
    event = wait_for_event(folder, "blocked")  # while it is blocked
    assert event.data["message"].startswith("the event loop has been blocked for ")
    assert event.data["message"].endswith(place)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode < 0
    assert place in out
    assert "Traceback" not in out
    (tmp_path / "job" / "mended").touch()
    code, out = run("train", job, "trainer.batches=2", "--dir", folder, "--resume")
    assert code == 0, out
    code, out = run("inspect", folder)
    assert "blocked" in out


@pytest.mark.slow
def test_a_block_beyond_the_time_limit_of_all_waits_ends_the_run(tmp_path: Path) -> None:
    job = blocking_job(tmp_path, IN_C)
    limits = ["runtime.stall_timeout_s=6", "rollout.episode_timeout_s=6", "reward.timeout_s=3"]
    code, out = run("train", job, *limits, "--dir", tmp_path / "run")
    assert code == -signal.SIGKILL
    assert "(runtime.stall_timeout_s)" in out
    assert wait_for_event(tmp_path / "run", "ended_blocked").data["blocked_s"] >= 6


LEAVES = """
import asyncio, time
from headrace.rollout.single_turn import SingleTurn

class Think(SingleTurn):
    async def run(self, prompt, policy):
        if int(prompt.prompt_id) % 4 == 0:
            await asyncio.to_thread(time.sleep, 86400)
        return await super().run(prompt, policy)
"""


@pytest.mark.slow
def test_calls_on_threads_that_never_return_do_not_hold_the_process_at_its_end(tmp_path: Path) -> None:
    """More of them than asyncio has threads."""
    job = blocking_job(tmp_path, "")
    (tmp_path / "job" / "think.py").write_text(LEAVES)
    limits = ["rollout.episode_timeout_s=2", "rollout.max_attempts=1", "trainer.batches=6"]
    code, out = run("train", job, *limits, "--dir", tmp_path / "run")
    assert code == 0, out
    assert "finished: v6" in out
