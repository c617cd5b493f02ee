"""Memory of a worker that does not see the one that it is told of."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest

from headrace.runtime.process.memory_here import MemoryHere


def test_what_is_seen_is_taken(tmp_path: Path) -> None:
    assert MemoryHere(str(tmp_path)).folder == tmp_path


def _hold(told: str, way: Connection) -> None:
    memory = MemoryHere(told)
    (memory.folder / "slot").write_bytes(b"weights")
    way.send((str(memory.folder), [child.pid for child in psutil.Process().children()]))
    way.recv()


@pytest.mark.parametrize("end", [signal.SIGKILL, None])
def test_what_is_made_elsewhere_goes_with_the_process_however_that_ends(
    tmp_path: Path, end: signal.Signals | None
) -> None:
    """Also where whoever ends it kills its children first, as Ray does."""
    own, other = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_hold, args=(str(tmp_path / "far"), other))
    process.start()
    text, children = own.recv()
    folder = Path(text)
    assert (folder / "slot").read_bytes() == b"weights"
    assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777 == 0o700
    for child in children:
        os.kill(child, signal.SIGKILL)
    if end is None:
        own.send("leave")
    else:
        assert process.pid is not None
        os.kill(process.pid, end)
    process.join(30)
    until = time.monotonic() + 30
    while folder.parent.exists():
        assert time.monotonic() < until
        time.sleep(0.02)
