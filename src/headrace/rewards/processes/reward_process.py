"""The run's end of one scoring process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from headrace import lifelines
from headrace.config.errors import ConfigError
from headrace.rewards.processes.clearing import Clearing
from headrace.rewards.processes.json_frames import FrameBuffer, FrameError, encode_frame
from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.sandbox.child_watch import signal_name
from headrace.sandbox.guardian import guarded
from headrace.sandbox.walls import Walls

_MAX_REPLY_BYTES = 1 << 16
_AT_ONCE = 1 << 16
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

    def as_user(self, user: int) -> Launch:
        """The same, but for samples that run as `user` if the run is root's."""
        return replace(self, setup={**self.setup, "limits": {**self.setup["limits"], "user": user}})


class RewardProcess(asyncio.Protocol):
    """A child, and its guardian, which ends it with all that it started, also when the run itself is killed."""

    def __init__(self, clearing: Clearing) -> None:
        self.lost = False
        """No reply will come any more."""
        self.on_reply: Callable[[list[Any]], None] = self._set_up
        """Called with each reply, in order."""
        self.on_lost: Callable[[], None] = lambda: None
        self._buffer = FrameBuffer(_MAX_REPLY_BYTES)
        self._garbage: str | None = None
        self._ready: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        """The transport's."""
        self._guardian: Process | None = None
        """Ends as the child does; see `guardian`."""
        self._watch: asyncio.Task[None] | None = None
        self._line: socket.socket | None = None
        """To the guardian; the other end of it is open in no other process."""
        self._folder: str | None = None
        self._clearing = clearing

    @staticmethod
    async def start(launch: Launch, clock: Clock, clearing: Clearing) -> RewardProcess:
        """Launch a child and load its reward functions there. Raises ConfigError with the child's words.

        `clearing` is told of the child's folder once it has ended.
        """
        child = RewardProcess(clearing)
        try:
            child._folder = tempfile.mkdtemp(prefix="headrace-")
            os.chmod(child._folder, 0o711)  # for the samples' user, who works in a folder in it
            await child._launch(launch, child._folder)
            child._watch = asyncio.create_task(child._notice_exit(clock), name="reward process's end")
            child.send(encode_frame([{**launch.setup, "folder": child._folder}]))
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
        self._socket = ours
        self._line, held = socket.socketpair()
        lifelines.hold(self._line)
        self._line.setblocking(False)
        with theirs, held, contextlib.ExitStack() as files:
            log = launch.log_path
            output = DEVNULL if log is None else files.enter_context(log.open("ab")).fileno()
            passed = [theirs.fileno()]
            command = [
                sys.executable,
                "-P",  # the working folder must not hide the standard library
                "-m",
                "headrace.rewards.processes.worker",
                *map(str, passed),
            ]
            try:
                command = launch.walls.around(command, folder, stays=True, passes=passed)
                self._guardian = await asyncio.create_subprocess_exec(
                    *guarded(command, line=held.fileno(), folder=folder, passes=passed),
                    pass_fds=[held.fileno(), *passed],
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

    def send(self, frame: bytes) -> None:
        if self._transport is not None and not self.lost:
            self._transport.write(frame)

    async def end(self, clock: Clock) -> str:
        """Kill the child and all that it started, and say how it had ended, as `was killed by SIGSEGV`. Idempotent."""
        if self._transport is not None:
            self._transport.abort()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._line is not None:
            with contextlib.suppress(OSError):
                self._line.shutdown(socket.SHUT_WR)
        if self._guardian is None:
            self._leave_folder()
            return "did not start"
        try:
            status = await clock.wait_for(self._guardian.wait(), _EXIT_TIMEOUT_S, "a killed reward process to end")
        except WaitTimeout:
            with contextlib.suppress(ProcessLookupError):
                self._guardian.kill()
            return "does not end, though killed"
        finally:
            self._leave_folder()
        if self._garbage is not None:
            return f"broke the protocol ({self._garbage})"
        if status >= 0:
            return f"ended with exit status {status}"
        return f"was killed by {signal_name(-status)}"

    async def _notice_exit(self, clock: Clock) -> None:
        """Hang up once the child has exited, whoever else holds the other end."""
        if self._guardian is None or self._transport is None:
            return
        await self._guardian.wait()
        await clock.sleep(_LAST_WORDS_S)
        self._transport.abort()

    def _leave_folder(self) -> None:
        if self._folder is not None and self._line is not None:
            self._clearing.add(self._folder, self._line)
        elif self._folder is not None:
            with contextlib.suppress(OSError):
                os.rmdir(self._folder)  # nothing ran that could fill it
        self._folder = self._line = None

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

    def _hear_the_rest(self) -> None:
        """What the child had answered before a write to it failed: those calls are not to blame for its end."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                while data := self._socket.recv(_AT_ONCE):
                    self.data_received(data)

    def break_off(self, why: str) -> None:
        self._garbage = why
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        if error is not None and self._garbage is None:
            self._hear_the_rest()
        self._set_up(["lost"])
        self.on_lost()
