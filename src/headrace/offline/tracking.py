"""The processes of an offline trainer's trackers. Nothing runs beside the trainer that could listen to them, so what
they have to say is told at the end."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.config.track import TrackerSection
from headrace.controller.tracking import CLOSING_S
from headrace.observe.events import EventSink

logger = logging.getLogger(__name__)


@contextmanager
def tracked(sections: Sequence[TrackerSection], folder: Path, event: EventSink) -> Iterator[None]:
    """Meanwhile trackers follow the record in `folder`, which has to hold how the run ended when this is left. What
    goes wrong with one is an event and a warning, and costs nothing else."""
    started = [(section, _start(section, folder)) for section in sections]
    try:
        yield
    finally:
        for section, process in started:
            for kind, message in _end(section, process):
                event(kind, {"tracker": section.type, "message": message})
                logger.warning("%s: %s", kind, message)


def _start(section: TrackerSection, folder: Path) -> subprocess.Popen[bytes] | None:
    log = folder / "logs" / f"{section.type}.log"
    spec = {"run": str(folder.resolve()), "tracker": section.model_dump(mode="json")}
    command = [sys.executable, "-P", "-m", "headrace.observe.trackers.process", json.dumps(spec)]
    try:
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the trainer
            )
    except OSError:
        return None


def _end(section: TrackerSection, process: subprocess.Popen[bytes] | None) -> Iterator[tuple[str, str]]:
    """Have it log the rest; what it says, as (kind, message)."""
    failed, name = "tracker_failed", section.type
    if process is None:
        yield failed, f"{name} cannot be started; the trainer went on without it"
        return
    try:
        out, _ = process.communicate(timeout=CLOSING_S)
    except subprocess.TimeoutExpired:
        _kill(process)
        yield failed, f"{name} did not log the rest within {CLOSING_S:.0f} s, and is given up"
        return
    said = False
    for line in out.splitlines():
        with suppress(ValueError, KeyError, TypeError):
            told = json.loads(line)
            said = said or told["kind"] == failed
            yield told["kind"], str(told["message"])
    if process.returncode != 0:
        _kill(process)
        if not said:
            yield failed, f"{name} ended with code {process.returncode}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With whatever it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
