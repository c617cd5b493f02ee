"""The one worker of a process that is spoken to by a socket: it is made there, asked, and asks others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from headrace.runtime.collection import rare_collections
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.local.host import WorkerHost
from headrace.runtime.local.local_refs import GENERATION
from headrace.runtime.local.service import Service
from headrace.runtime.process.boot import WorkerBoot
from headrace.runtime.process.kept import Links, SegmentRefs, WorkerRefs
from headrace.runtime.process.listener import Server
from headrace.runtime.process.peer import LinkedPeer
from headrace.runtime.process.shared_memory import Segments
from headrace.runtime.process.site import own_folder
from headrace.runtime.progress import Stuck
from headrace.runtime.workers import BASE_TYPES, Handle, Peer, WorkerLost


class ServedWorker:
    def __init__(self, kind: Any, told: WorkerBoot, on_stuck: Callable[[Stuck], None]) -> None:
        """`kind`: the worker's class. Made in the event loop that it is to answer in."""
        self._kind = kind
        self._told = told
        self._folder = folder = Path(told.folder)
        self._service: Service | None = None
        self._made = ExitStack()
        """Open once the worker is made."""
        self._types = types = BASE_TYPES.with_types(kind.types)
        self._segments = Segments(own_folder(folder, told.name, told.generation))
        self._runtime = InlineRuntime(copying=False, limits=told.limits, on_stuck=on_stuck)
        self._links = Links(folder, lambda: types, self._segments, self._runtime)
        self._own = SegmentRefs(told.name, told.generation * GENERATION, types, self._segments)

    async def serve(self, listening: socket.socket) -> None:
        """Answer until it is told to leave."""
        left = asyncio.Event()
        answering = await self._server(left).listen(listening)
        await left.wait()
        answering.close()
        await self._end()

    async def serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer this connection alone, from another machine, until it is told to leave, or the connection ends.
        Whether it was told."""
        left = asyncio.Event()
        leaving = asyncio.ensure_future(left.wait())
        answering = asyncio.ensure_future(self._server(left).answer_only(reader, writer))
        await asyncio.wait([leaving, answering], return_when=asyncio.FIRST_COMPLETED)
        if not left.is_set():
            leaving.cancel()
            return False  # the lane may be in a call that does not end
        await self._end()
        answering.cancel()
        return True

    def _server(self, left: asyncio.Event) -> Server:
        return Server(
            self._runtime,
            lambda: self._types,
            self._segments,
            self._folder,
            find=self._find,
            shown=self._own,
            build=self._build,
            leave=left.set,
        )

    async def _end(self) -> None:
        self._links.close()
        await self._runtime.close()
        self._made.close()

    async def _build(self, spec: object) -> None:
        told = self._told
        refs = WorkerRefs(self._own, told.name, self._links)
        host = WorkerHost(told.name, told.rank, self._runtime, refs, refs.get_soon, self._reach, threads=told.threads)
        runtime = self._runtime
        self._service = await Service.make(self._kind, spec, host, told.name, told.rank, runtime, runtime.place)
        self._made.enter_context(rare_collections())

    def _find(self, worker: str) -> Service:
        if worker != self._told.name:
            raise WorkerLost(self._told.rank, f"{self._told.name} is where it should be")
        if self._service is None:
            raise WorkerLost(self._told.rank, "it is not made yet")
        return self._service

    def _reach(self, handle: Handle) -> Peer:
        return LinkedPeer(handle, self._links)
