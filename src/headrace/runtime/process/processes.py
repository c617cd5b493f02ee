"""Worker processes of one runtime."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from headrace.runtime.local.local_refs import Keepers
from headrace.runtime.local.service import Service
from headrace.runtime.process.boot import PACKAGE, path_of
from headrace.runtime.process.kept import Links, RefsElsewhere, ShownRefs
from headrace.runtime.process.launch import ChildProcess
from headrace.runtime.process.listener import Server
from headrace.runtime.process.origin import Begin, Origin
from headrace.runtime.process.remote_worker import RemoteWorker
from headrace.runtime.process.shared_memory import Segments
from headrace.runtime.process.site import Site, socket_path
from headrace.runtime.protocol import Services
from headrace.runtime.refs import Ref, Refs
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Placement, Worker

W = TypeVar("W", bound=Worker)


class Processes:
    """Where a runtime has its worker processes: a private folder, and a socket by which they reach the controller.

    See `Apart`.
    """

    keeps_all = False

    def __init__(
        self,
        run: str,
        *,
        logs: Path | None = None,
        packages: Sequence[str] = (PACKAGE,),
        begin: Begin = ChildProcess.begin,
    ) -> None:
        """`run` names the run, as its folder does. `logs`: a folder; what `rollout/0` prints is in rollout-0.log there,
        or on this process's stderr if none is given. `packages` that have classes of workers.
        `begin`: how a process comes to be; a child of this one, unless given."""
        self._run = run
        self._logs = logs
        self._packages = tuple(packages)
        self._begin = begin
        self._site: Site | None = None
        self._elsewhere: Refs
        self._server: asyncio.AbstractServer | None = None

    async def open(
        self, services: Services, types: Callable[[], WireTypes], keepers: Keepers, find: Callable[[str], Service]
    ) -> Refs:
        """What is kept in processes. `keepers` and `find`: what is kept in this one, and its workers by name."""
        if self._server is not None:
            return self._elsewhere
        folder = self.folder
        self._services = services
        self._segments = Segments(folder / "controller")
        self._links = Links(folder, types, self._segments, services)
        server = Server(services, types, self._segments, folder, find=find, shown=ShownRefs(keepers, types))
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(socket_path(folder, "")))
        listening.listen(128)
        self._server = await server.listen(listening)
        self._elsewhere = RefsElsewhere(self._links, asyncio.get_running_loop())
        return self._elsewhere

    @property
    def folder(self) -> Path:
        """Of the site, which is there from the first time that it is asked for. Raises OSError."""
        if self._site is None:
            self._site = Site(self._run)
        return self._site.folder

    def make_folder(self, name: str) -> Path:
        """One in memory that all of the run's processes see, and that goes with the site."""
        made = self.folder / name
        made.mkdir(mode=0o700)
        return made

    def address(self, worker: str) -> str:
        """Of a process; the controller's for the empty name."""
        return str(socket_path(self.folder, worker))

    def member(
        self, kind: type[W], spec: object, name: str, rank: int, types: WireTypes, where: Placement
    ) -> RemoteWorker:
        """Not started. Raises ValueError for a class that no process may run."""
        log = None
        if self._logs is not None:
            self._logs.mkdir(parents=True, exist_ok=True)
            log = self._logs / f"{name.replace('/', '-')}.log"
        path, closes = path_of(kind, self._packages), callable(getattr(kind, "close", None))
        origin = Origin(path, self._packages, types, spec, closes, log)
        return RemoteWorker(name, rank, origin, where, self.folder, self._segments, self._services, self._begin)

    def devices(self, worker: str) -> Sequence[str]:
        """See `Apart.devices`."""
        return ()

    async def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """What a process keeps. Raises RefLost."""
        return await self._links.get(ref, names)

    async def close(self) -> None:
        """Once all workers have ended: nothing of the site is left."""
        if self._site is None:
            return
        if self._server is not None:
            self._links.close()
            self._server.close()
            await asyncio.sleep(0)
        self._site.close()
        self._site = self._server = None
