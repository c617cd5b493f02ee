"""Workers that tests start, inline and in processes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from headrace.runtime.inline import ThreadPerLane, ThreadPlacement
from headrace.runtime.progress import Unit, mark
from headrace.runtime.refs import Ref
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Handle, Host


@dataclass(frozen=True, slots=True)
class Spec:
    word: str
    fails: bool = False
    hangs_s: float = 0.0
    dies: str = ""
    """The process of the worker ends while it is made, as long as it can remove a file from this folder."""


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float


class Panic(BaseException):
    """As a Rust extension raises."""


class Probe:
    """Does whatever a test asks of it."""

    kind: ClassVar[str] = "probe"
    types: ClassVar[WireTypes] = WireTypes({"probe_spec": Spec, "point": Point})

    def __init__(self, spec: Spec, host: Host) -> None:
        if spec.fails:
            raise ValueError(f"{spec.word} cannot be made")
        time.sleep(spec.hangs_s)
        if spec.dies and (left := [*Path(spec.dies).iterdir()]):
            left[0].unlink()
            os._exit(3)
        self._spec = spec
        self._host = host
        self._told: list[Any] = []

    def word(self) -> str:
        return f"{self._spec.word} of {self._host.name}"

    def tell(self, value: Any) -> int:
        self._told.append(value)
        return len(self._told)

    async def note(self, value: int, ballast: bytes) -> None:
        """As `tell`, in the event loop."""
        self._told.append(value)

    def note_on_lane(self, value: int, ballast: bytes) -> None:
        self._told.append(value)

    async def told(self) -> list[Any]:
        return self._told

    def same(self, value: Any) -> Any:
        return value

    def where(self) -> tuple[int, str]:
        return os.getpid(), threading.current_thread().name

    async def pid(self) -> int:
        return os.getpid()

    def collections(self) -> tuple[int, int]:
        return gc.get_freeze_count(), gc.get_threshold()[0]

    async def loop_thread(self) -> str:
        return threading.current_thread().name

    def mirrored(self, point: Point) -> Point:
        return Point(point.y, point.x)

    def no_plain_data(self) -> object:
        return {"a": [object()]}

    def fail(self, words: str) -> None:
        raise KeyError(words)

    async def leave(self) -> None:
        sys.exit(3)

    def leave_on_lane(self) -> None:
        sys.exit(3)

    async def panic(self) -> None:
        raise Panic("a bound")

    def panic_on_lane(self) -> None:
        raise Panic("a bound")

    def stop_iteration(self) -> None:
        raise StopIteration(1)

    async def sleep(self, seconds: float, ballast: bytes = b"") -> str:
        try:
            await self._host.clock.sleep(seconds)
        except asyncio.CancelledError:
            self._told.append("cancelled")
            raise
        return "slept"

    def block(self, seconds: float) -> str:
        time.sleep(seconds)
        self._told.append("blocked")
        return "blocked"

    def held(self, path: str) -> str:
        """Until there is a file."""
        end = time.monotonic() + 30
        while not os.path.exists(path) and time.monotonic() < end:
            time.sleep(0.01)
        self._told.append("held")
        return "held"

    def hang(self, unit: Unit, seconds: float) -> str:
        """As work that gets on once, and then no more."""
        mark(unit)
        mark(unit)
        return self.block(seconds)

    async def stubborn(self) -> None:
        for _ in range(3):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self._told.append("no")

    async def block_loop(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 (this is the fault)

    async def count(self, end: int) -> AsyncIterator[int]:
        try:
            for number in range(end):
                self._told.append(number)
                yield number
        finally:
            self._told.append("closed")

    def count_blocking(self, end: int) -> Iterator[int]:
        try:
            for number in range(end):
                self._told.append(number)
                yield number
        finally:
            self._told.append("closed")

    async def count_and_fail(self, end: int) -> AsyncIterator[int]:
        for number in range(end):
            yield number
        raise ValueError("no more")

    async def slowly(self, seconds: float) -> AsyncIterator[int]:
        try:
            yield 0
            await self._host.clock.sleep(seconds)
            yield 1
        finally:
            self._told.append("slow closed")

    def keep(self, size: int) -> Ref:
        return self._host.put({"numbers": np.arange(size, dtype=np.float32), "text": "a"})

    def drop(self, ref: Ref) -> None:
        self._host.free(ref)

    async def read(self, ref: Ref) -> float:
        return float((await self._host.get(ref, ["numbers"]))["numbers"].sum())

    def read_blocking(self, ref: Ref) -> float:
        return float(self._host.refs.get(ref)["numbers"].sum())

    async def read_in_loop(self, ref: Ref) -> float:
        return float(self._host.refs.get(ref)["numbers"].sum())

    async def ask(self, other: Handle, method: str, *args: Any) -> Any:
        return await self._host.reach(other).call(method, *args, what="a question", seconds=20)

    async def relay(self, other: Handle, end: int) -> AsyncIterator[int]:
        async with aclosing(self._host.reach(other).stream("count", end, what="numbers", seconds=20)) as numbers:
            async for number in numbers:
                yield number

    async def read_on(self, other: Handle, method: str, *args: Any) -> AsyncIterator[int]:
        """For as long as it is read itself."""
        numbers: AsyncGenerator[int, None] = self._host.reach(other).stream(method, *args, what="numbers", seconds=60)
        async with aclosing(numbers):
            async for number in numbers:
                yield number

    async def lane(self) -> str:
        return await self._host.compute("probe", lambda: threading.current_thread().name)

    async def spawn(self) -> None:
        self._host.spawn(self.sleep(60), "sleeper")

    def die(self) -> None:
        os._exit(7)

    async def die_slowly(self) -> AsyncIterator[int]:
        yield 0
        await asyncio.sleep(0.05)
        os._exit(7)

    async def cancel_all_and_ask(self, other: Handle, method: str, *args: Any) -> None:
        for task in asyncio.all_tasks():
            task.cancel()
        self._host.spawn(self.ask(other, method, *args), "a last question")

    async def cut(self, seconds: float) -> None:
        """End all connections, and hold the event loop; the process goes on for so long."""
        threading.Timer(seconds, os._exit, (3,)).start()
        for descriptor in range(3, 256):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                connection.shutdown(socket.SHUT_RDWR)
        time.sleep(seconds)  # noqa: ASYNC251

    def stop_self(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def say(self, words: str, times: int) -> None:
        for _ in range(times):
            sys.stdout.write(words + "\n")
            sys.stderr.write(words + "\n")

    def modules(self) -> list[str]:
        return sorted(sys.modules)

    def left_alone_by_the_collector(self) -> int:
        return gc.get_freeze_count()

    def started_and_ended(self) -> int:
        with subprocess.Popen(["sleep", "60"]) as process:
            process.terminate()
        return process.returncode

    async def handed_on(self) -> list[str]:
        """The kind of the loop, and what a command that it starts has open of sockets that listen, and of pipes."""
        code = (
            "import os, socket, stat\n"
            "for fd in range(3, 4096):\n"
            "    mode = os.fstat(fd).st_mode if os.path.lexists(f'/proc/self/fd/{fd}') else 0\n"
            "    if stat.S_ISFIFO(mode):\n"
            "        print('pipe')\n"
            "    one = socket.socket(fileno=fd) if stat.S_ISSOCK(mode) else None\n"
            "    if one and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):\n"
            "        print('listener')"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, start_new_session=True
        )
        printed, _ = await process.communicate()
        return [type(asyncio.get_running_loop()).__module__.partition(".")[0], *printed.decode().split()]

    def threads(self) -> tuple[int | None, str | None]:
        return self._host.threads, os.environ.get("OMP_NUM_THREADS")


class OnLanes(ThreadPerLane):
    """Threads of other names; what is around a call says so."""

    def __init__(self, word: str) -> None:
        self._word = word

    def thread(self, lane: str, busy: Mapping[str, str]) -> str:
        return f"{self._word} {lane}"

    @contextmanager
    def around(self, thread: str) -> Iterator[None]:
        _around.append(thread)
        yield
        _around.pop()


_around: list[str] = []


class Placed:
    """Says on which lanes it is to be, where it has a process of its own."""

    kind: ClassVar[str] = "placed"
    types: ClassVar[WireTypes] = Probe.types

    def __init__(self, spec: Spec, host: Host) -> None:
        self._made_in = self.where()

    @classmethod
    def lanes(cls, spec: Spec, host: Host) -> ThreadPlacement | None:
        if spec.fails:
            raise ValueError(f"{host.name} has no lanes")
        return OnLanes(spec.word) if spec.word else None

    def made_in(self) -> tuple[str, list[str]]:
        return self._made_in

    def where(self) -> tuple[str, list[str]]:
        return threading.current_thread().name, [*_around]


class Unending:
    """Fails at its end."""

    kind: ClassVar[str] = "unending"
    types: ClassVar[WireTypes] = WireTypes()

    def __init__(self, fails: bool, host: Host) -> None:
        self._fails = fails

    async def close(self) -> None:
        if self._fails:
            raise KeyError("lane")


class Closing:
    """Tells at its end."""

    kind: ClassVar[str] = "closing"
    types: ClassVar[WireTypes] = WireTypes()

    def __init__(self, path: str, host: Host) -> None:
        self._path = path

    async def close(self) -> None:
        with open(self._path, "a") as file:  # noqa: ASYNC230
            file.write("closed\n")
