"""Where a run that is at work is told something: a Unix socket in its folder, for its owner alone.

One line of JSON asks; lines of JSON answer, the last one with `done` or `error`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from headrace.config.errors import ConfigError
from headrace.errors import HeadraceError
from headrace.runtime.protocol import Clock, WaitTimeout
from headrace.store.run_store import CONTROL_NAME as NAME

logger = logging.getLogger(__name__)

_MOST_BYTES = 4096
_ASK_S = 10.0
"""In which whoever connects has to ask."""
_END_S = 5.0
"""How long the run waits, at its end, for what is given up then."""
Say = Callable[[str], None]
Answer = Callable[[Mapping[str, Any], Say], Awaitable[None]]
"""Does what is asked for, and says what it does; raises HeadraceError."""


@asynccontextmanager
async def listening(folder: Path, clock: Clock, answer: Answer) -> AsyncGenerator[None]:
    """While it is entered, `answer` is given what is asked. What is not done by its end is cancelled, and whoever asked
    is told so."""
    path = folder / NAME
    path.unlink(missing_ok=True)
    at_work: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def say(**words: Any) -> None:
            writer.write(json.dumps(words).encode() + b"\n")

        try:
            await answer(await _asked(reader, clock), lambda line: say(line=line))
            say(done=True)
        except asyncio.CancelledError:
            say(error="the run is ending, and does no more of it")
            writer.close()
            raise
        except HeadraceError as error:
            say(error=str(error))
        except Exception as error:  # whoever asked waits for a word; the run goes on
            logger.exception("what was asked for was not done")
            say(error=f"{type(error).__name__}: {error}")
        try:
            with suppress(OSError):
                await writer.drain()
        finally:
            writer.close()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A task of ours: one of asyncio's own that is cancelled is an error in its log."""
        task = asyncio.create_task(serve(reader, writer), name="control")
        at_work.add(task)
        task.add_done_callback(at_work.discard)

    with _near(folder) as near:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(f"{near}/{NAME}")
            os.chmod(path, 0o600)  # before anybody can connect
            server = await asyncio.start_unix_server(connected, sock=listener, limit=_MOST_BYTES)
        except BaseException:
            listener.close()
            raise
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)
        for task in at_work:
            task.cancel()
        if at_work:
            with suppress(WaitTimeout):
                await clock.wait_for(asyncio.wait([*at_work]), _END_S, "what was asked for to be given up")


async def _asked(reader: asyncio.StreamReader, clock: Clock) -> Mapping[str, Any]:
    """Raises ConfigError."""
    try:
        asked = json.loads(await clock.wait_for(reader.readuntil(b"\n"), _ASK_S, "what is asked"))
    except (ValueError, WaitTimeout, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise ConfigError(f"not understood: {error}") from error
    if not isinstance(asked, dict):
        raise ConfigError("not understood: what is asked is no object")
    return asked


def ask(folder: Path, question: Mapping[str, Any], say: Say, *, seconds: float) -> None:
    """Of the run that is at work in `folder`; what it says meanwhile goes to `say`. Blocking. Raises ConfigError where
    no run is at work there, or it refuses; and where nothing is heard of it for `seconds`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line, _near(folder) as near:
        line.settimeout(seconds)
        try:
            line.connect(f"{near}/{NAME}")
        except OSError as error:
            raise ConfigError(f"{folder} is no run that is at work ({error.strerror or error})") from error
        try:
            line.sendall(json.dumps(question).encode() + b"\n")
            with line.makefile("rb") as answers:
                for text in answers:
                    told = json.loads(text)
                    if "error" in told:
                        raise ConfigError(told["error"])
                    if told.get("done"):
                        return
                    say(told["line"])
        except TimeoutError as error:
            raise ConfigError(f"nothing was heard of the run in {folder} for {seconds:g} s") from error
        except ConnectionError:  # it ended before it had heard
            pass
    raise ConfigError(f"the run in {folder} ended before it had answered")


@contextmanager
def _near(folder: Path) -> Generator[str]:
    """A short path of the folder: that of a socket has some hundred bytes at most."""
    if not os.path.isdir("/proc/self/fd"):
        yield str(folder)
        return
    try:
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"{folder} is no run that is at work ({error.strerror})") from error
    try:
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)
