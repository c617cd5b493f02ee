"""The processes of a run's trackers: started with it, told when it ends, and never waited for beyond a deadline."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from headrace.config.track import TrackerSection
from headrace.observe.events import EventSink
from headrace.runtime.protocol import Clock, WaitTimeout

CLOSING_S = 30.0
"""A tracker has so long to log what is left when the run has ended."""

logger = logging.getLogger(__name__)


@asynccontextmanager
async def tracking(
    sections: Sequence[TrackerSection], folder: Path, clock: Clock, event: EventSink, seen: Callable[[], bool]
) -> AsyncGenerator[None]:
    """Meanwhile trackers follow the record in `folder`, which has to hold how the run ended when this is left.

    What goes wrong with one is an event, and costs nothing else. `seen`: whether the user is shown events now; if not,
    it is a warning too.
    """
    processes = [TrackerProcess(section, folder, event, seen) for section in sections]
    try:
        for process in processes:
            await process.start()
        yield
    finally:
        await asyncio.gather(*(process.end(clock) for process in processes))


class TrackerProcess:
    """See `headrace.observe.trackers.process`. Its output is in the run's `logs/`."""

    def __init__(self, section: TrackerSection, folder: Path, event: EventSink, seen: Callable[[], bool]) -> None:
        self._section = section
        self._folder = folder
        self._log = folder / "logs" / f"{section.type}.log"
        self._event = event
        self._seen = seen
        self._process: asyncio.subprocess.Process | None = None
        self._listening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        spec = {"run": str(self._folder.resolve()), "tracker": self._section.model_dump(mode="json")}
        try:
            with self._log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-P",
                    "-m",
                    "headrace.observe.trackers.process",
                    json.dumps(spec),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C is for the run
                )
        except OSError as error:
            self._tell("tracker_failed", f"{self._section.type} cannot be started: {error}; the run goes on without it")
            return
        self._listening = asyncio.create_task(self._listen(self._process), name=f"tracker {self._section.type}")

    async def end(self, clock: Clock) -> None:
        """Have it log the rest; after `CLOSING_S` it is killed, with what it started."""
        process, listening = self._process, self._listening
        if process is None or listening is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await clock.wait_for(listening, CLOSING_S, f"the tracker {self._section.type}")
        except WaitTimeout:
            self._tell(
                "tracker_failed",
                f"{self._section.type} did not log the rest of the run within {CLOSING_S:.0f} s, and is given up",
            )
        finally:
            if process.returncode is None:
                _kill(process)
                await process.wait()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        failed = False
        async for line in process.stdout:
            with suppress(ValueError, KeyError, TypeError):
                said = json.loads(line)
                failed = failed or said["kind"] == "tracker_failed"
                self._tell(said["kind"], said["message"])
        code = await process.wait()
        if code != 0:
            _kill(process)
        if code != 0 and not failed:
            self._tell("tracker_failed", f"{self._section.type} ended with code {code}; the run goes on without it")

    def _tell(self, kind: str, message: str) -> None:
        message = f"{message} (see {self._log})"
        self._event(kind, {"tracker": self._section.type, "message": message})
        if not self._seen():
            logger.warning("%s: %s", kind, message)


def _kill(process: asyncio.subprocess.Process) -> None:
    """With whatever it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
