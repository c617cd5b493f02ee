"""The run's end of one scoring process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from headrace.config.errors import ConfigError
from headrace.rollout.rewards.frames import FrameBuffer, FrameError, encode_frame
from headrace.rollout.sandbox.execute import remove
from headrace.rollout.sandbox.walls import Walls
from headrace.runtime.protocol import Clock, WaitTimeout

_MAX_REPLY_BYTES = 1 << 16
_START_TIMEOUT_S = 60.0
"""Loading the function can import large libraries."""
_EXIT_TIMEOUT_S = 5.0
_LAST_WORDS_S = 0.1
"""Replies that an exiting child has written are read within this time."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How scoring processes are started."""

    what: str
    """Whose functions they load, for errors: as `reward.function 'mine.py:f'`."""
    setup: dict[str, Any]
    """See `worker`; `folder` is added."""
    walls: Walls
    """Around the process itself."""
    environment: dict[str, str] | None
    """None is that of the run."""
    log_path: Path | None
    """Takes what the functions print; it is thrown away unless given."""


class RewardProcess(asyncio.Protocol):
    """A child in a process group of its own, so that its children end with it; and all of them end with the run."""

    def __init__(self) -> None:
        self.lost = False
        """No reply will come any more."""
        self.on_reply: Callable[[list[Any]], None] = self._set_up
        """Called with each reply, in order."""
        self.on_lost: Callable[[], None] = lambda: None
        self._buffer = FrameBuffer(_MAX_REPLY_BYTES)
        self._garbage: str | None = None
        self._ready: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._process: Process | None = None
        self._watch: asyncio.Task[None] | None = None
        self._lifeline: int | None = None
        """Open in this process alone; see `lifeline`."""
        self._folder: str | None = None

    @staticmethod
    async def start(launch: Launch, clock: Clock) -> RewardProcess:
        """Launch a child and load its reward functions there. Raises ConfigError with the child's words."""
        child = RewardProcess()
        try:
            child._folder = tempfile.mkdtemp(prefix="headrace-")
            os.chmod(child._folder, 0o711)  # for nobody, who works in a folder in it
            await child._launch(launch, child._folder)
            child._watch = asyncio.create_task(child._notice_exit(clock), name="reward process's end")
            child.send([{**launch.setup, "folder": child._folder}])
            reply = await clock.wait_for(child._ready, _START_TIMEOUT_S, f"{launch.what} to load")
        except WaitTimeout as error:
            await child.end(clock)
            raise ConfigError(f"{error}; what does it do while it is imported?") from error
        except OSError as error:
            await child.end(clock)
            raise ConfigError(f"cannot start a process to score rewards: {error}") from error
        except BaseException:
            await child.end(clock)
            raise
        if reply == ["ready"]:
            return child
        ended = await child.end(clock)
        if reply[0] == "error":
            raise ConfigError(str(reply[1]))
        raise ConfigError(f"{launch.what} was to load, but its process {ended} while it loaded")

    async def _launch(self, launch: Launch, folder: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as files:
            watched, self._lifeline = os.pipe()
            files.callback(os.close, watched)
            log = launch.log_path
            output = DEVNULL if log is None else files.enter_context(log.open("ab")).fileno()
            passed = (theirs.fileno(), watched)
            command = [
                sys.executable,
                "-P",  # the working folder must not hide the standard library
                "-m",
                "headrace.rollout.rewards.worker",
                *map(str, passed),
            ]
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *launch.walls.around(command, folder, stays=True, passes=passed),
                    pass_fds=passed,
                    stdin=DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=launch.environment,
                    start_new_session=True,
                )
                await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
            except BaseException:
                ours.close()
                raise

    def send(self, message: list[Any]) -> None:
        if self._transport is not None and not self.lost:
            self._transport.write(encode_frame(message))

    async def end(self, clock: Clock) -> str:
        """Kill the child and all of its group, and say how it had ended, as `was killed by SIGSEGV`."""
        if self._transport is not None:
            self._transport.abort()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        if self._process is None:
            self._remove_folder()
            return "did not start"
        self._kill_group(self._process)
        try:
            status = await clock.wait_for(self._process.wait(), _EXIT_TIMEOUT_S, "a killed reward process to end")
        except WaitTimeout:
            return "does not end, though killed"
        finally:
            self._remove_folder()
        if self._garbage is not None:
            return f"broke the protocol ({self._garbage})"
        if status >= 0:
            return f"ended with exit status {status}"
        return f"was killed by {signal.Signals(-status).name}"

    async def _notice_exit(self, clock: Clock) -> None:
        """Hang up once the child has exited, even if a process that it left behind holds the line."""
        if self._process is None or self._transport is None:
            return
        await self._process.wait()
        self._kill_group(self._process)
        await clock.sleep(_LAST_WORDS_S)
        self._transport.abort()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            remove(self._folder)
            self._folder = None

    @staticmethod
    def _kill_group(process: Process) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def _set_up(self, reply: list[Any]) -> None:
        if not self._ready.done():
            self._ready.set_result(reply)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for reply in self._buffer.feed(data):
                self.on_reply(reply)
        except FrameError as error:
            self.break_off(str(error))

    def break_off(self, why: str) -> None:
        self._garbage = why
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self._set_up(["lost"])
        self.on_lost()
