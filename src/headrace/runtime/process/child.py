"""A worker process. Run by its parent as `python -m headrace.runtime.process.child BOOT` (`Boot`, as JSON).

Imports neither torch nor transformers; what its worker imports is the worker's.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from headrace.runtime.collection import rare_collections
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.local.host import WorkerHost
from headrace.runtime.local.local_refs import GENERATION
from headrace.runtime.local.service import Service
from headrace.runtime.process.boot import Boot, class_at
from headrace.runtime.process.identity import end_with_parent, name_process, open_many_files
from headrace.runtime.process.kept import Links, SegmentRefs, WorkerRefs
from headrace.runtime.process.listener import Server
from headrace.runtime.process.peer import LinkedPeer
from headrace.runtime.process.shared_memory import Segments
from headrace.runtime.progress import Stuck
from headrace.runtime.workers import BASE_TYPES, Handle, Peer, WorkerLost


def main() -> None:
    boot = Boot.parse(sys.argv[1])
    end_with_parent(boot.parent, boot.life)
    name_process(boot.name)
    open_many_files()
    sys.path += [path for path in boot.paths if path not in sys.path]
    asyncio.run(_Child(boot).run())


def own_folder(folder: Path, name: str, generation: int) -> Path:
    """Where a worker's segments are."""
    return folder / f"{name.replace('/', '-')}.{generation}"


class _Child:
    def __init__(self, boot: Boot) -> None:
        self._boot = boot
        self._kind: Any = class_at(boot.kind, boot.packages)
        self._service: Service | None = None
        self._made = ExitStack()
        """Open once the worker is made."""

    async def run(self) -> None:
        """Until it is told to leave."""
        boot, folder = self._boot, Path(self._boot.folder)
        types = BASE_TYPES.with_types(self._kind.types)
        segments = Segments(own_folder(folder, boot.name, boot.generation))
        self._runtime = InlineRuntime(copying=False, limits=boot.limits, on_stuck=_end)
        self._links = Links(folder, lambda: types, segments, self._runtime)
        self._own = SegmentRefs(boot.name, boot.generation * GENERATION, types, segments)
        left = asyncio.Event()
        server = Server(
            self._runtime,
            lambda: types,
            segments,
            folder,
            find=self._find,
            shown=self._own,
            build=self._build,
            leave=left.set,
        )
        listening = await server.listen(socket.socket(fileno=boot.listening))
        await left.wait()
        listening.close()
        self._links.close()
        await self._runtime.close()
        self._made.close()

    async def _build(self, spec: object) -> None:
        boot = self._boot
        refs = WorkerRefs(self._own, boot.name, self._links)
        host = WorkerHost(boot.name, boot.rank, self._runtime, refs, refs.get_soon, self._reach, threads=boot.threads)
        self._service = await Service.make(self._kind, spec, host, boot.name, boot.rank, self._runtime)
        self._made.enter_context(rare_collections())

    def _find(self, worker: str) -> Service:
        if worker != self._boot.name:
            raise WorkerLost(self._boot.rank, f"{self._boot.name} is where it should be")
        if self._service is None:
            raise WorkerLost(self._boot.rank, "it is not made yet")
        return self._service

    def _reach(self, handle: Handle) -> Peer:
        return LinkedPeer(handle, self._links)


def _end(stuck: Stuck) -> None:
    """No thread can be made to end, but the process can; its last words say why."""
    sys.stderr.write(f"{stuck}\n")
    os._exit(1)


if __name__ == "__main__":
    main()
