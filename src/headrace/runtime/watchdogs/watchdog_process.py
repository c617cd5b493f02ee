"""The process that watches a run's event loop from outside, where nothing that the run does can hold it up.

Run as `python -P -m headrace.runtime.watchdogs.watchdog_process SPEC`. SPEC is JSON: `pid` of the run, `thread` of its
event loop, the descriptors `beats` (of `BEAT`, `TURN` and signals) and `dumps` (of `faulthandler`), `owners`,
`ends_after_s`, and `record`, the run's database or null. Ends when the run does.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from headrace.runtime.terminal import show_cursor
from headrace.runtime.watchdogs.dumps import blocked_at, stacks
from headrace.runtime.watchdogs.loop_watch import BEAT, DUMP_SIGNAL, HEADING, LOOK_S, TURN, LoopWatch, Notice

STOPS = (signal.SIGINT, signal.SIGTERM)
_QUIET_S = 0.1
"""A dump is written in pieces; then it is whole."""
_LAST_RECORD_S = 5.0


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    for number in (*STOPS, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the run, whose end is the end of this
    record = _Record(spec["record"])
    end = _watch(spec, LoopWatch(time.monotonic(), ends_after_s=spec["ends_after_s"]), record)
    if end is not None and os.getppid() == spec["pid"]:
        record.write(end)
        _say(end, spec["record"])
        show_cursor(2)
        os.kill(spec["pid"], signal.SIGKILL)
    record.close()


def _watch(spec: dict[str, Any], watch: LoopWatch, record: _Record) -> Notice | None:
    """Until the run has ended (None), or has to be killed: why."""
    beats, dumps = spec["beats"], spec["dumps"]
    poll = select.poll()
    poll.register(beats, select.POLLIN)
    poll.register(dumps, select.POLLIN)
    text, written_at = "", 0.0
    while os.getppid() == spec["pid"]:
        ready = [descriptor for descriptor, _ in poll.poll((_QUIET_S if text else LOOK_S) * 1000)]
        now = time.monotonic()
        notices = []
        if dumps in ready:
            piece = os.read(dumps, 1 << 16)
            if not piece:
                return None
            text, written_at = text + piece.decode(errors="replace"), now
        if beats in ready:
            told = os.read(beats, 1 << 12)
            if not told:
                return None
            if TURN in told:
                watch.turned(now)
            if BEAT in told:
                notices += watch.beat(now)
                text = ""
            for number in told:
                if number in STOPS:
                    watch.signalled(number, now)
        if text and now - written_at >= _QUIET_S:
            last = text.rpartition(HEADING)[2]
            watch.dumped(blocked_at(stacks(last), spec["thread"], spec["owners"]), now)
            text = ""
        if _is_stopped(spec["pid"]):  # no turn is missing, and a dump would be made as it goes on
            watch.turned(now)
        elif DUMP_SIGNAL is not None and watch.asks(now):
            with suppress(ProcessLookupError):
                os.kill(spec["pid"], DUMP_SIGNAL)
        for notice in [*notices, *watch.notices(now)]:
            _say(notice, spec["record"])
            record.write(notice)
        if (end := watch.must_end(now)) is not None:
            return end
    return None


def _is_stopped(pid: int) -> bool:
    """By a signal or a debugger. False where the system does not say."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


def _say(notice: Notice, record: str | None) -> None:
    run = "" if record is None else f"{Path(record).parent.name}: "
    mend = f": {notice.mend}" if notice.mend else ""
    lead = "\r\n" if os.isatty(2) else ""  # below what a live view has drawn
    os.write(2, f"{lead}headrace: {run}{notice.words}{mend}\n".encode(errors="replace"))


class _Record:
    """Writes events while the run cannot. A thread of its own waits for the disk and for whoever holds the database."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._threads: list[Thread] = []

    def write(self, notice: Notice) -> None:
        if self._path is None or notice.kind is None:
            return
        thread = Thread(target=self._write, args=(Path(self._path), notice, time.time()), daemon=True)
        thread.start()
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]

    def close(self) -> None:
        for thread in self._threads:
            thread.join(_LAST_RECORD_S)

    @staticmethod
    def _write(path: Path, notice: Notice, at: float) -> None:
        from headrace.store.media.database import Database
        from headrace.store.records import Events

        try:
            database = Database(path)
            try:
                said = {"message": notice.words, "blocked_s": round(notice.blocked_s, 1)}
                Events(database).write(at, str(notice.kind), said)
            finally:
                database.close()
        except Exception as error:  # the record is as good as it can be; the words are on the terminal
            _say(Notice(f"that could not be recorded: {error}"), str(path))


if __name__ == "__main__":
    main()
