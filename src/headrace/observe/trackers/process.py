"""The process of one tracker: follows the record until the run has ended, then leaves.

`python -m headrace.observe.trackers.process SPEC`, SPEC being JSON: `run` (the folder) and `tracker` (its section). The
run has ended when standard input does. Standard output takes what people must hear, a JSON object a line: `kind` and
`message`. What the library prints goes to standard error.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from headrace.config.reading.config_text import values_of
from headrace.config.track import SECTIONS, TrackerSection
from headrace.observe.trackers.follow import Follower
from headrace.observe.trackers.opening import open_tracker
from headrace.observe.trackers.position import Position
from headrace.observe.trackers.protocol import TrackedRun
from headrace.store import RunReader
from headrace.store.run_store import TRACKERS_NAME

LOOK_S = 1.0
"""Between two looks at the record."""
SLOW_S = 30.0
"""A tracker that takes longer to log what there is is told of."""
_MOST_TOLD = 400
"""Characters of an error."""


def main() -> None:
    spec = json.loads(sys.argv[1])
    section = SECTIONS[spec["tracker"]["type"]].model_validate(spec["tracker"])
    tell = Teller(os.dup(1), section.type)
    os.dup2(2, 1)
    os.nice(10)  # the run comes first
    signal.signal(signal.SIGALRM, lambda *_: tell.slow())
    try:
        track(Path(spec["run"]), section)
    except BaseException as error:
        traceback.print_exc()
        tell.failed(error)


def track(run: Path, section: TrackerSection) -> None:
    """Until standard input ends. Raises what the tracker does."""
    folder = run / TRACKERS_NAME
    folder.mkdir(exist_ok=True)
    with RunReader(run) as reader, (folder / f"{section.type}.lock").open("w") as lock:
        _hurry()
        fcntl.flock(lock, fcntl.LOCK_EX)  # the process of a run that was killed may be about to end
        path = folder / f"{section.type}.json"
        position = Position.read(path)
        tracker = open_tracker(section, tracked_run(reader, folder / section.type, position.tracker_id))
        follower = Follower(reader, tracker, position, path)
        while True:
            ended = _has_ended()
            _hurry()
            if ended:
                follower.close()
                signal.setitimer(signal.ITIMER_REAL, 0)
                return
            follower.catch_up()
            signal.setitimer(signal.ITIMER_REAL, 0)


def tracked_run(reader: RunReader, folder: Path, tracker_id: str | None) -> TrackedRun:
    folder.mkdir(exist_ok=True)
    path = reader.path.resolve()
    parameters: dict[str, Any] = values_of(reader.config_yaml)
    key = hashlib.sha256(f"{path} {reader.created_at!r}".encode()).hexdigest()[:12]
    return TrackedRun(name=path.name, key=key, folder=folder, parameters=parameters, id=tracker_id)


def _hurry() -> None:
    """From now on, until the timer is stopped or set again, slowness is told of."""
    signal.setitimer(signal.ITIMER_REAL, SLOW_S, SLOW_S)


def _has_ended() -> bool:
    """Whether standard input ends within `LOOK_S`; nothing is ever written to it."""
    return bool(select.select([0], [], [], LOOK_S)[0])


class Teller:
    """Says once what is wrong."""

    def __init__(self, descriptor: int, tracker: str) -> None:
        self._descriptor = descriptor
        self._tracker = tracker
        self._is_told = False
        self._parent = os.getppid()

    def slow(self) -> None:
        if os.getppid() != self._parent:  # nobody waits for the rest any more
            os._exit(1)
        if not self._is_told:
            self._is_told = True
            words = f"has been busy for {SLOW_S:.0f} s and is behind the record, which waits for it"
            self._say("tracker_slow", f"{self._tracker} {words}: the run does not")

    def failed(self, error: BaseException) -> NoReturn:
        self._say(
            "tracker_failed", f"{self._tracker} is given up for now: {in_words(error)}; the run goes on without it"
        )
        sys.stderr.flush()
        os._exit(1)  # not through the exit handlers of a library that has failed

    def _say(self, kind: str, message: str) -> None:
        line = json.dumps({"kind": kind, "message": message}) + "\n"
        try:
            os.write(self._descriptor, line.encode())
        except OSError:  # the run is gone
            return


def in_words(error: BaseException) -> str:
    """In one line, without the password of an address."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    text = "".join(character for character in text if character.isprintable())
    text = re.sub(r"//[^/@\s]*@", "//***@", text)
    return text if len(text) <= _MOST_TOLD else f"{text[:_MOST_TOLD]}..."


if __name__ == "__main__":
    main()
