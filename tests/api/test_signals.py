"""A script that trains, and is interrupted; callbacks that block."""

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_jobs import job

import headrace

HELPERS = Path(__file__).parents[1] / "helpers"
SCRIPT = """
    import sys, time
    sys.path.insert(0, {helpers!r})
    import headrace
    from api_jobs import ROWS, job
    from pathlib import Path

    BASE = 0.5

    def score(response, row):
        return BASE + len(set(response)) / 100

    class Slow:
        def on_batch(self, batch):
            if batch.batch == 1:
                time.sleep({block})

    folder = Path({folder!r})
    try:
        headrace.train(job(folder, trainer={{"batches": {batches}}}), data=ROWS, reward=score, dir=folder / "run",
                       resume={resume}, callbacks=[Slow()])
    except headrace.Interrupted as stopped:
        print(f"{{type(stopped).__mro__[1].__name__}}: {{stopped}}; {{stopped.run.status}}")
        raise
"""


@pytest.fixture(autouse=True)
def _leaves_no_process() -> Iterator[None]:
    yield
    for process in _STARTED:
        process.kill()
    _STARTED.clear()


_STARTED: list[subprocess.Popen[str]] = []


def start(folder: Path, *, resume: bool = False, batches: int = 100_000, block: float = 0) -> subprocess.Popen[str]:
    job(folder)
    text = textwrap.dedent(SCRIPT).format(
        helpers=str(HELPERS),
        folder=str(folder),
        resume=resume,
        batches=batches,
        block=block,
    )
    script = folder / "script.py"
    script.write_text(text)
    command = [sys.executable, "-u", str(script)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder)
    _STARTED.append(process)
    return process


def wait_for_batches(folder: Path, count: int) -> None:
    end = time.monotonic() + 90
    while time.monotonic() < end:
        if (folder / "run" / "run.db").exists() and len(headrace.Run(folder / "run").metrics) >= count:
            return
        time.sleep(0.1)
    raise AssertionError("no batch within 90 s")


@pytest.mark.slow
def test_a_script_that_gets_a_signal_stops_cleanly_and_goes_on_where_it_was(tmp_path: Path) -> None:
    """Its reward is in `__main__`: in no file that could be loaded, and with a source of its own."""
    number = signal.SIGTERM
    process = start(tmp_path)
    wait_for_batches(tmp_path, 2)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    run = headrace.Run(tmp_path / "run")
    assert run.status == "stopped"
    assert f"KeyboardInterrupt: stopped by {number.name}; go on with dir='{run.path}', resume=True; stopped" in out
    assert process.returncode != 0
    assert err.rstrip().splitlines()[-1].startswith("headrace.api.interrupted.Interrupted: stopped by")
    before = len(run.metrics)
    process = start(tmp_path, resume=True)
    wait_for_batches(tmp_path, before + 2)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert run.status == "stopped"
    assert [batch.batch for batch in run.metrics] == list(range(len(run.metrics)))


@pytest.mark.slow
def test_a_callback_that_blocks_is_named_and_a_second_signal_leaves_it(tmp_path: Path) -> None:
    process = start(tmp_path, block=600)
    end = time.monotonic() + 90
    told: list[str] = []
    while not told and time.monotonic() < end:
        wait_for_batches(tmp_path, 2)
        events = headrace.Run(tmp_path / "run").record.events
        told = [event.data["message"] for event in events if event.kind == "blocked"]
        time.sleep(0.2)
    line = 1 + (tmp_path / "script.py").read_text().splitlines().index("            time.sleep(600)")
    assert f"at {tmp_path}/script.py, line {line}, in on_batch (callbacks)" in told[0]
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert "KeyboardInterrupt: a second signal: the run is left behind on its thread" in err
