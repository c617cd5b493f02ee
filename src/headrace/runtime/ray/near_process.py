"""The process of an actor that listens on the controller's machine: begun, watched and ended by Ray."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from headrace.runtime.process.launch import last_words
from headrace.runtime.process.origin import Origin
from headrace.runtime.process.process_id import ProcessId
from headrace.runtime.process.site import own_folder
from headrace.runtime.protocol import Services
from headrace.runtime.ray.asked_actor import reason_of
from headrace.runtime.ray.boot import ActorBoot
from headrace.runtime.ray.making import boot_of, make_actor
from headrace.runtime.ray.near_actor import NearActor
from headrace.runtime.ray.reservations import Options
from headrace.runtime.workers import Placement, WorkerError, WorkerLost

_LANE = "ray"
_GONE_S = 30.0
"""In which an actor that was killed is gone."""
_LOOK_S = 0.02
_EXIT = re.compile(r"Worker exit type: ([A-Z_]+)")

logger = logging.getLogger(__name__)


class NearProcess:
    """See `Begun`."""

    def __init__(self, actor: Any, boot: ActorBoot, log: Path | None, said: int, services: Services) -> None:
        """`said`: bytes that were in the log before."""
        self._actor = actor
        self._boot = boot
        self._log = log
        self._said = said
        self._services = services
        self._process: ProcessId | None = None
        self._living: asyncio.Task[str] | None = None

    @classmethod
    async def begin(
        cls,
        services: Services,
        namespace: str,
        origin: Origin,
        name: str,
        rank: int,
        generation: int,
        where: Placement,
        folder: Path,
        options: Options,
    ) -> NearProcess:
        """See `Begin`. Raises WorkerError for a node that it cannot be on; WorkerLost; WaitTimeout."""
        log = origin.log
        said = log.stat().st_size if log is not None and log.exists() else 0
        boot = boot_of(origin, name, rank, generation, where, options, namespace=namespace, folder=str(folder))
        actor = await services.compute(_LANE, make_actor, NearActor, boot, f"{name}.{generation}", options)
        process = cls(actor, boot, log, said, services)
        try:
            await services.clock.wait_for(process._listen(), where.start_s, f"{name} to be placed by Ray")
        except BaseException:
            process.kill()
            raise
        process._living = services.spawn(process._life(), f"life of {name}")
        return process

    async def ended(self) -> str:
        """See `Begun.ended`."""
        assert self._living is not None
        return await asyncio.shield(self._living)

    def kill(self) -> None:
        """See `Begun.kill`. Ray takes a moment for it, in which one that has not left would answer others."""
        if self._process is not None and not (self._living is not None and self._living.done()):
            self._process.kill()
        with contextlib.suppress(RayError):
            ray.kill(self._actor, no_restart=True)

    async def clear(self) -> None:
        """See `Begun.clear`. One that does not end is left behind."""
        if self._living is not None:
            await asyncio.wait([self._living], timeout=_GONE_S)
        clock, boot = self._services.clock, self._boot
        end = clock.now() + _GONE_S
        while self._process is not None and self._process.is_there:
            if clock.now() > end:
                logger.warning("%s (pid %d) does not end; it is left behind", boot.name, self._process.pid)
                break
            await clock.sleep(_LOOK_S)
        shutil.rmtree(own_folder(Path(boot.folder), boot.name, boot.generation), ignore_errors=True)

    async def _listen(self) -> None:
        boot = self._boot
        try:
            refusal, pid, began = await self._actor.listen.remote()
        except RayError as error:
            raise WorkerLost(
                boot.rank, reason_of(error) + last_words(self._log, self._said), worker=boot.name
            ) from error
        if refusal:
            raise WorkerError(boot.rank, "HeadraceError", refusal, worker=boot.name)
        if pid:
            self._process = ProcessId(pid, began)

    async def _life(self) -> str:
        try:
            why: str = await self._actor.life.remote()
        except RayError as error:
            return self._reason(error)
        return why

    def _reason(self, error: RayError) -> str:
        kind = _EXIT.search(str(error))
        how = reason_of(error) if kind is None else f"its process ended, which Ray calls {kind[1]}"
        return how + last_words(self._log, self._said)
