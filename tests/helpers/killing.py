"""`kill -9`, again and again, of whatever a run consists of, and whether anything came of it."""

from __future__ import annotations

import os
import random
import re
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

import psutil

from headrace.experience.sample import GroupKey
from headrace.store import RunReader
from headrace.store.journal import Journal

RUN = "run"
"""The kind of the run's own process."""
_TITLE = re.compile(r"headrace ([a-z]+)/\d+")
_OTHERS = {
    "headrace.runtime.watchdogs": "watchdog",
    "headrace-janitor": "janitor",
    "headrace.sandbox import guardian": "guardian",
    "headrace.rewards.processes.worker": "reward",
}
_OF_RAY = {"raylet": "raylet", "gcs_server": "gcs"}
"""By the name of the process: others are told of it on their command lines."""
_END_S = 240.0


def kind_of(process: psutil.Process) -> str | None:
    """None for what is none of the run's kinds, or has gone."""
    try:
        name = process.name()
        said = " ".join([name, *process.cmdline()])
        log = os.path.basename(os.readlink(f"/proc/{process.pid}/fd/1"))
    except (psutil.Error, OSError):
        return None
    if (of_ray := _OF_RAY.get(name)) is not None:
        return of_ray
    if (title := _TITLE.search(said)) is not None:
        return title[1]
    if (named := re.fullmatch(r"([a-z]+)-\d+\.log", log)) is not None and "ray" not in named[1]:
        return named[1]  # an actor
    return next((kind for words, kind in _OTHERS.items() if words in said), None)


class Killing:
    """One run, gone on with as often as it ends before its time."""

    def __init__(self, command: Sequence[str], folder: Path, seed: int, log: Path) -> None:
        self._command = [*command]
        self.folder = folder
        self._random = random.Random(seed)
        self._log = log
        self.killed: Counter[str] = Counter()
        self.seen: set[str] = set()
        """Kinds that were there whenever a process was to be killed."""
        self.lives = 0
        self._process: subprocess.Popen[bytes] | None = None

    def kill(self, count: int, weights: Mapping[str, float], mean_s: float) -> None:
        """So many processes, by kind, one after the other, in `mean_s` on the average."""
        end = time.monotonic() + 60.0 + 10 * mean_s * count
        while self.killed.total() < count and time.monotonic() < end:
            process = self._living()
            time.sleep(min(self._random.expovariate(1 / mean_s), 4 * mean_s))
            found: dict[str, list[psutil.Process]] = {RUN: [psutil.Process(process.pid)]} if self._has_begun else {}
            with suppress(psutil.NoSuchProcess):
                for each in psutil.Process(process.pid).children(recursive=True):
                    if (kind := kind_of(each)) is not None:
                        found.setdefault(kind, []).append(each)
            self.seen |= found.keys()
            (kind,) = self._random.choices([*weights], [*weights.values()])
            if kind not in found or process.poll() is not None:
                continue
            if kind != RUN and not self._has_advanced():  # its start would end, and all begin anew
                continue
            with suppress(psutil.NoSuchProcess):
                self._random.choice(found[kind]).send_signal(signal.SIGKILL)
                self.killed[kind] += 1

    def require_end(self, said: str) -> None:
        """What was killed last was more than it can bear: it says so, and ends in order."""
        assert self._process is not None
        assert self._process.wait(60.0) == 1, self.said()
        assert said in self.said(), self.said()

    def finish(self, batches: int) -> None:
        """So many batches more, undisturbed: the run ends well."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(_END_S)
        _, version = self._version() or (0, 0)
        process = self._begin(f"trainer.batches={version + batches}")
        assert process.wait(_END_S) == 0, self.said()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    @property
    def _has_begun(self) -> bool:
        """Whether there is anything to go on with."""
        return (self.folder / "run.db").exists()

    def _has_advanced(self) -> bool:
        """Whether this life has made a version: each has a branch of its own."""
        return self._branch() > self._began_at

    def _branch(self) -> int:
        """The newest on which a version was made."""
        if not self._has_begun:
            return -1
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(self.folder / "run.db")) as connection:
            ((branch,),) = connection.execute("SELECT max(branch) FROM versions")
            return -1 if branch is None else int(branch)
        return -1  # its tables are not there yet

    def _version(self) -> tuple[int, int] | None:
        if not self._has_begun:
            return None
        with RunReader(self.folder) as reader:
            return reader.version()

    def _living(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is None or process.poll() is not None:
            if process is not None:
                assert process.returncode in (-signal.SIGKILL, 0, 1, 2), self.said()
            process = self._begin()
        return process

    def _begin(self, *overrides: str) -> subprocess.Popen[bytes]:
        self.lives += 1
        self._began_at = self._branch()
        resume = ["--resume"] if self._has_begun else []
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([*self._command, *overrides, *resume], stdout=log, stderr=log)
        return self._process


def require_nothing_lost(folder: Path, max_staleness: int) -> Counter[str]:
    """How many groups came to what. Each was finished once, so that no second of generation that had come to its end
    was spent again, and is trained, dropped by a filter, or ready when the run ends. Of an epoch no prompt is trained
    twice, and none is left out. What ran, and had no room before its deadline when the run went back, may come to an
    end before it hears of that."""
    journal = Journal(folder / "journal")
    writers = sorted({segment.writer for segment in journal.segments()})
    receipts = [receipt for writer in writers for receipt in journal.written(writer)]
    finished = Counter(receipt.key for receipt in receipts)
    with RunReader(folder) as reader:
        reader.counts().check()
        late = Counter(event.data["prompt"] for event in reader.events.read() if event.kind == "reissued")
        doubled = {key: times for key, times in finished.items() if times > 1 + late[str(GroupKey(*key))]}
        those = [receipt for receipt in receipts if receipt.key in doubled]
        assert not doubled, f"finished more than once: {those}; ended as the run went back: {late}"
        records = [row.record for row in reader.metrics.read("batch")]
    assert [record["batch"] for record in records] == [*range(len(records))]
    assert max(int(stale) for record in records for stale in record["staleness"]) <= max_staleness
    with closing(sqlite3.connect(folder / "run.db")) as connection:
        attempts = connection.execute("SELECT epoch, position, attempt, state, reason FROM attempts").fetchall()
    came_to = {tuple(key): "zero_spread" if reason == "zero_spread" else state for *key, state, reason in attempts}
    lost = {key: came_to.get(key) for key in finished if came_to.get(key) not in ("trained", "ready", "zero_spread")}
    assert not lost, f"finished, and not trained: {lost}"
    trained = Counter(key[:2] for key, state in came_to.items() if state == "trained")
    assert max(trained.values()) == 1, "a prompt was trained twice in an epoch"
    drawn = sorted({key[:2] for key in came_to})
    by_epoch = Counter(epoch for epoch, _ in drawn)
    assert drawn == [(epoch, position) for epoch in sorted(by_epoch) for position in range(by_epoch[epoch])]
    return Counter(came_to[key] for key in finished)
