"""Ranks of a launcher on one machine: how they find the first one, also once the launcher has begun them anew."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.runtime.process.joined import Joined, Joining, _boot, _met, _write
from headrace.runtime.process.process_id import ProcessId
from headrace.runtime.workers import WorkerLost

LAUNCHER = 7
WORLD = Joined(1, 2, 2, LAUNCHER)
MEETING = "ranks.json"


def tell(folder: Path, first: ProcessId, site: Path, boot: dict[str, Any] | None = None) -> None:
    """As the first rank's process does."""
    site.mkdir(exist_ok=True)
    if boot is not None:
        _write(_boot(site, WORLD.rank), json.dumps(boot))
    told = {"site": str(site), "launcher": LAUNCHER, "pid": first.pid, "began": first.began, "gate": None}
    _write(folder / MEETING, json.dumps(told))


def own() -> ProcessId:
    found = ProcessId.own()
    assert found is not None
    return found


pytestmark = pytest.mark.skipif(ProcessId.own() is None, reason="needs /proc")


def test_what_a_killed_first_rank_left_is_no_loss_of_the_next_one(tmp_path: Path) -> None:
    """Of the same launcher, which has begun all anew: they look before the first has anything to tell."""
    dead = ProcessId(own().pid, own().began - 1)  # another, which had its number
    tell(tmp_path, dead, tmp_path / "old", boot={"name": "rank/1 of old"})
    new = {"name": "rank/1"}
    later = threading.Timer(0.2, tell, (tmp_path, own(), tmp_path / "new", new))
    later.start()
    meeting, boot = _met(tmp_path, WORLD)
    later.join()
    assert (meeting.pid, Path(meeting.site).name, boot) == (own().pid, "new", new)


def test_one_that_was_there_and_has_ended_is_lost(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        tell(tmp_path, ProcessId(process.pid, int(stat[19])), tmp_path / "site")
        later = threading.Timer(0.2, process.kill)
        later.start()
        with pytest.raises(WorkerLost, match=r"^rank 1 is lost: the first rank's process has ended$"):
            _met(tmp_path, WORLD)
        later.join()


def test_the_first_rank_takes_away_what_an_earlier_one_left(tmp_path: Path) -> None:
    tell(tmp_path, own(), tmp_path / "old")
    Joining(tmp_path, Joined(0, 2, 2, LAUNCHER), "127.0.0.1")
    assert not (tmp_path / MEETING).exists()
