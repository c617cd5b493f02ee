"""`headrace` in a process that ends, as if killed, when a batch has been trained: exit status 9."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_PROGRAM = """
import json, os, sys, time
from pathlib import Path
from headrace.cli.main import main
from headrace.controller.recorder import Recorder
after, positions, arguments = json.loads(sys.argv[1])
batch = Recorder.batch
def ends(self, step):
    batch(self, step)
    if step.batch == after - 1:
        deadline = time.monotonic() + 120
        while not all(Path(position).exists() for position in positions):
            assert time.monotonic() < deadline, "the processes of the trackers did not start"
            time.sleep(0.05)
        os._exit(9)
Recorder.batch = ends
main(arguments)
"""


def run_killed(
    arguments: Sequence[str], folder: Path, *, after: int, trackers: Sequence[str] = (), home: Path | None = None
) -> None:
    """Run `headrace ARGUMENTS` until `after` batches have been trained and all `trackers` follow the run.

    On a slow machine those batches are trained before the trackers' processes have started. Returns when these have
    ended. `folder` is the run's; `home` the working directory, and where Trackio keeps its files.
    """
    spec = json.dumps([after, [str(folder / "trackers" / f"{name}.json") for name in trackers], list(arguments)])
    environment = dict(os.environ) if home is None else {**os.environ, "TRACKIO_DIR": str(home / "trackio")}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, spec], capture_output=True, text=True, timeout=240, env=environment, cwd=home
    )
    assert done.returncode == 9, done.stderr
    for name in trackers:
        with (folder / "trackers" / f"{name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # its process ends by itself
