"""One worker in an actor's process on the controller's machine: it is spoken to by a socket, as a worker process is.

A call of an actor takes two milliseconds, and half of that of a processor at each end; a frame takes a tenth. So Ray
places the process and tells of its end, and carries nothing else.
"""

from __future__ import annotations

import asyncio
import platform
import socket
import sys
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.runtime.process.identity import name_process
from headrace.runtime.process.process_id import ProcessId
from headrace.runtime.process.served import ServedWorker
from headrace.runtime.process.site import socket_path
from headrace.runtime.progress import Stuck
from headrace.runtime.ray.actor_process import require_versions, worker_class
from headrace.runtime.ray.boot import ActorBoot


class NearActor:
    """Its methods are the controller's to call."""

    def __init__(self, boot: str) -> None:
        """`boot`: see `ActorBoot`."""
        self._boot = ActorBoot.parse(boot)
        self._kind = worker_class(self._boot)
        self._ending = asyncio.Event()
        self._why = "it left"

    async def listen(self) -> tuple[str, int, int]:
        """Once its socket is there: nothing, or why it is not; and which process it is in (`ProcessId`)."""
        boot, folder = self._boot, Path(self._boot.folder)
        path = socket_path(folder, boot.name)
        listening = socket.socket(socket.AF_UNIX)
        try:
            require_versions(boot)
            path.unlink(missing_ok=True)
            listening.bind(str(path))
            listening.listen(128)
        except HeadraceError as error:
            return str(error), 0, 0
        except OSError as error:
            mend = "have Ray run there as the same user, and see the same /dev/shm"
            return f"the node {platform.node()} cannot listen in {folder}: {error.strerror}; {mend}", 0, 0
        name_process(boot.name)
        worker = ServedWorker(self._kind, boot, self._stuck)
        serving = asyncio.ensure_future(worker.serve(listening))
        serving.add_done_callback(self._served)
        own = ProcessId.own()
        return ("", 0, 0) if own is None else ("", own.pid, own.began)

    async def life(self) -> str:
        """Until it has left, or has to be ended: why."""
        await self._ending.wait()
        sys.stdout.flush()
        sys.stderr.flush()
        return self._why

    def _served(self, serving: asyncio.Task[None]) -> None:
        if not serving.cancelled() and (error := serving.exception()) is not None:
            self._why = f"{type(error).__name__}: {error}"
        self._ending.set()

    def _stuck(self, stuck: Stuck) -> None:
        """No thread can be made to end; whoever hears of it ends the actor."""
        sys.stderr.write(f"{stuck}\n")
        self._why = str(stuck)
        self._ending.set()
