"""Worker processes that another launcher began, as torchrun does: they find the first rank's process by a file in the
run's folder, which all of them are told, and listen where it has its site; on other machines see `joined_apart.py`.

The launcher has their lives: it ends all once one has failed. One that listens leaves signals to the first rank, and
ends with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from headrace.runtime.clock import SystemClock
from headrace.runtime.collection import expect_imports
from headrace.runtime.process.boot import PACKAGE, WorkerBoot, class_at
from headrace.runtime.process.identity import leave_signals, name_process, open_many_files
from headrace.runtime.process.joined_apart import Gate, GateKeeper, JoinedApart, Launcher, served_apart
from headrace.runtime.process.launch import ChildProcess
from headrace.runtime.process.origin import Begun, Origin
from headrace.runtime.process.process_id import ProcessId
from headrace.runtime.process.served import ServedWorker
from headrace.runtime.process.site import own_folder, socket_path
from headrace.runtime.progress import Stuck
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.workers import Placement, WorkerError, WorkerLost

_MEETING = "ranks.json"
_LOOK_S = 0.05
_MEET_S = 3600.0
"""In which the first rank has looked at the config and the data."""
_GONE_S = 30.0
_TRY_S = 2.0
"""Between two looks for the launcher of the first machine."""


@dataclass(frozen=True, slots=True)
class Joined:
    """What a launcher told this process."""

    rank: int
    world: int
    here: int
    """Processes of the world on this machine."""
    launcher: int
    """Its process."""
    node: int = 0
    """Which machine of the world this one is."""
    local: int = 0
    """Which of this machine's, and which of its devices is this one's."""
    at: tuple[str, int] | None = None
    """Where the launcher of the first machine listens."""

    @property
    def is_spread(self) -> bool:
        """Whether ranks are on several machines."""
        return self.here < self.world

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Joined | None:
        """None for a process that no launcher of ranks began."""
        names = ("RANK", "WORLD_SIZE", "MASTER_ADDR")
        if not all(environment.get(name) for name in names):
            return None
        try:
            rank, world = int(environment["RANK"]), int(environment["WORLD_SIZE"])
            here, port = int(environment.get("LOCAL_WORLD_SIZE", world)), environment.get("MASTER_PORT")
            return cls(
                rank,
                world,
                here,
                os.getppid(),
                node=int(environment.get("GROUP_RANK", 0)),
                local=int(environment.get("LOCAL_RANK", rank)),
                at=None if port is None else (environment["MASTER_ADDR"], int(port)),
            )
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class _Meeting:
    """What the first rank's process says of itself."""

    site: str
    launcher: int
    pid: int
    began: int
    gate: dict[str, Any] | None = None
    """Where those of other machines find it: `Gate`."""


class Joining:
    """The first rank's side."""

    def __init__(self, folder: Path, joined: Joined, host: str) -> None:
        """`folder`: the run's. `host`: an address of this machine, at which those of other machines reach it."""
        self._file = folder / _MEETING
        self._file.unlink(missing_ok=True)  # as one that was killed left it
        self._joined = joined
        self._keeper = GateKeeper(host) if joined.is_spread else None

    async def begin(
        self, origin: Origin, name: str, rank: int, generation: int, where: Placement, folder: Path
    ) -> Begun:
        """See `Begin`: the first rank's worker is a child of this process, the others' are in the launcher's."""
        if rank == 0:
            return await ChildProcess.begin(origin, name, rank, generation, where, folder)
        own = ProcessId.own()
        if own is None:
            raise WorkerError(rank, "ConfigError", "ranks of a launcher are told apart by /proc, which is not here")
        boot = WorkerBoot(
            kind=origin.path,
            packages=list(origin.packages),
            name=name,
            rank=rank,
            generation=generation,
            threads=where.threads,
            limits=dict(where.limits),
            folder=str(folder),
            paths=[],
        )
        gate = None if self._keeper is None else asdict(await self._keeper.open())
        if rank < self._joined.here:
            _write(_boot(folder, rank), boot.text())
        _write(self._file, json.dumps(asdict(_Meeting(str(folder), self._joined.launcher, own.pid, own.began, gate))))
        if self._keeper is not None and rank >= self._joined.here:
            return await JoinedApart.begin(self._keeper, boot, where.start_s)
        clock, end = SystemClock(), time.monotonic() + where.start_s
        while (listens := _read(_listens(folder, rank))) is None:
            if time.monotonic() > end:
                raise WaitTimeout(f"rank {rank} of the launcher to listen", where.start_s)
            await clock.sleep(_LOOK_S)
        return JoinedProcess(ProcessId(listens["pid"], listens["began"]), boot)

    def close(self) -> None:
        """Nobody is told of it any more, or let in."""
        self._file.unlink(missing_ok=True)
        if self._keeper is not None:
            self._keeper.close()


class JoinedProcess:
    """See `Begun`."""

    def __init__(self, process: ProcessId, boot: WorkerBoot) -> None:
        self._process = process
        self._boot = boot
        self._clock = SystemClock()

    async def ended(self) -> str:
        """See `Begun.ended`."""
        while self._process.runs:  # told to stop, torchrun waits for the first rank before it waits for another
            await self._clock.sleep(_LOOK_S)
        return f"its process (pid {self._process.pid}) ended; its launcher tells how"

    def kill(self) -> None:
        """See `Begun.kill`: unless it is about to end."""
        if _listens(Path(self._boot.folder), self._boot.rank).exists():
            self._process.kill()

    async def clear(self) -> None:
        """See `Begun.clear`. One that does not end is left behind."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GONE_S):
                await self.ended()
        shutil.rmtree(own_folder(Path(self._boot.folder), self._boot.name, self._boot.generation), ignore_errors=True)


def serve(folder: Path, joined: Joined) -> NoReturn:
    """Be another rank's process than the first's, until that lets it go. `folder`: the run's. Raises WaitTimeout;
    WorkerLost if the first rank's process has ended."""
    if joined.node:
        _serve_apart(folder, joined)
    meeting, told = _met(folder, joined)
    site, first = Path(meeting.site), ProcessId(meeting.pid, meeting.began)
    boot = WorkerBoot(**told)
    leave_signals()
    name_process(boot.name)
    open_many_files()
    expect_imports()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(socket_path(site, boot.name)))
    listening.listen(128)
    own = ProcessId.own()
    assert own is not None, "the first rank has one"
    asyncio.run(_served(class_at(boot.kind, (PACKAGE,)), boot, listening, own, first))
    _listens(site, boot.rank).unlink(missing_ok=True)
    _leave(0)


def _serve_apart(folder: Path, joined: Joined) -> NoReturn:
    """As `serve`, on another machine than the first rank's."""
    name, end = f"rank/{joined.rank}", time.monotonic() + _MEET_S
    launcher, tried = None if joined.at is None else Launcher(*joined.at), 0.0

    def begun(worker: str) -> None:
        leave_signals()
        name_process(worker)
        open_many_files()
        expect_imports()

    while time.monotonic() < end:
        told = _read(folder / _MEETING)
        if told is not None and told.get("gate") is not None:  # it may be what an earlier run left
            asyncio.run(served_apart(joined.rank, Gate(**told["gate"]), _end, begun, _leave))
        if launcher is not None and time.monotonic() - tried > _TRY_S:
            if launcher.is_lost():
                raise WorkerLost(joined.rank, "the first rank's launcher has ended", worker=name)
            tried = time.monotonic()
        time.sleep(_LOOK_S)
    raise WaitTimeout(f"the first rank to tell rank {joined.rank} what it is to do, in {folder / _MEETING}", _MEET_S)


def _leave(code: int) -> NoReturn:
    """To end as Python does takes long once torch is there, and the launcher takes a kill for a failure."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _served(kind: Any, boot: WorkerBoot, listening: socket.socket, own: ProcessId, first: ProcessId) -> None:
    serving = asyncio.ensure_future(ServedWorker(kind, boot, _end).serve(listening))
    _write(_listens(Path(boot.folder), boot.rank), json.dumps(asdict(own)))
    while not serving.done():
        await asyncio.wait([serving], timeout=10 * _LOOK_S)
        if not first.runs:
            sys.stderr.write(f"{boot.name}: the first rank's process has ended\n")
            os._exit(1)  # the lane may be in a call that waits for it
    await serving


def _met(folder: Path, joined: Joined) -> tuple[_Meeting, dict[str, Any]]:
    """Raises WorkerLost if the first rank's process was there, and has ended; WaitTimeout."""
    end, first = time.monotonic() + _MEET_S, None
    while time.monotonic() < end:
        if first is not None and not first.runs:
            raise WorkerLost(joined.rank, "the first rank's process has ended", worker=f"rank {joined.rank}")
        told = _read(folder / _MEETING)
        if told is not None and told.get("launcher") == joined.launcher:
            meeting = _Meeting(**told)
            found = ProcessId(meeting.pid, meeting.began)
            # Otherwise an earlier run left it, or the launcher has begun all anew, and the next first rank is to tell.
            first = found if found.runs else first
            if found.runs and (boot := _read(_boot(Path(meeting.site), joined.rank))) is not None:
                return meeting, boot
        time.sleep(_LOOK_S)
    raise WaitTimeout(f"the first rank to tell rank {joined.rank} what it is to do, in {folder / _MEETING}", _MEET_S)


def _boot(site: Path, rank: int) -> Path:
    return site / f"boot-{rank}.json"


def _listens(site: Path, rank: int) -> Path:
    return site / f"listens-{rank}.json"


def _write(path: Path, text: str) -> None:
    """Whole, or not there; for this user alone."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    fresh.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found


def _end(stuck: Stuck) -> None:
    """See `process/child.py`."""
    sys.stderr.write(f"{stuck}\n")
    os._exit(1)
