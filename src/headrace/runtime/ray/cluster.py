"""A Ray cluster as the place of a run's workers: one of its own on this machine, or one that is joined."""

from __future__ import annotations

import logging
import re
import secrets
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import ray
from ray.exceptions import RayError

from headrace.errors import HeadraceError
from headrace.runtime.event_loop import on_own_thread
from headrace.runtime.local.local_refs import Keepers
from headrace.runtime.local.service import Service
from headrace.runtime.local.worker_group import Member
from headrace.runtime.process.boot import PACKAGE, path_of
from headrace.runtime.process.origin import Origin
from headrace.runtime.process.processes import Processes
from headrace.runtime.protocol import Services
from headrace.runtime.ray.member import RayWorker
from headrace.runtime.ray.near_process import NearProcess
from headrace.runtime.ray.refs import ActorRefs
from headrace.runtime.ray.shelf import SHELF, Shelf
from headrace.runtime.refs import Ref, Refs
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Placement

LANE = "ray"
_NO_NAME = r"[^A-Za-z0-9_.-]+"
_START_S, _REACH_S = 120.0, 20.0
_WORDS = 300
"""Characters of Ray's own error."""


class ClusterError(HeadraceError, ConnectionError):
    """No cluster is there, or it does not let this process in."""


class Head(Protocol):
    """A cluster of the run's own. Both block."""

    def start(self) -> str:
        """Its address."""

    def close(self) -> None: ...


class RayCluster:
    """See `Apart`.

    Where all its workers are on this machine, they are near: they are spoken to, and keep columns, as processes do
    (`runtime/process/`), and Ray has their places and lives. Else all goes through Ray, and so do columns.
    """

    def __init__(
        self,
        run: str,
        *,
        address: str | None = None,
        head: Head | None = None,
        logs: Path | None = None,
        packages: Sequence[str] = (PACKAGE,),
        near: bool = True,
    ) -> None:
        """`run` names the run, as its folder does. `address`: of a cluster; unless given, `head` starts one
        here; with neither, this process has to be in one already. `logs`: a folder; what `rollout/0` prints
        is in rollout-0.log there, where a node sees it. `near`: whether all workers are on this machine."""
        self.keeps_all = not near
        self._address = address
        self._head = head
        self._logs = logs
        self._packages = tuple(packages)
        self._namespace = f"headrace-{re.sub(_NO_NAME, '-', Path(run).name)}-{secrets.token_hex(4)}"
        self._services: Services
        self._types: Callable[[], WireTypes]
        self._refs: ActorRefs | None = None
        self._shelf: Any = None
        self._joins = False
        self._is_open = False
        self._lines = Processes(run, logs=logs, packages=packages, begin=self._begin)
        """To those that are near; and the run's folder in memory."""

    async def open(
        self, services: Services, types: Callable[[], WireTypes], keepers: Keepers, find: Callable[[str], Service]
    ) -> Refs:
        """See `Apart.open`. Raises ClusterError, and what `head` raises."""
        if not self._is_open:
            self._services, self._types = services, types
            await services.compute(LANE, self._connect)
            self._is_open = True
        if not self.keeps_all:
            return await self._lines.open(services, types, keepers, find)
        if self._refs is None:
            await services.compute(LANE, self._set_up_shelf)
            self._refs = ActorRefs("", 0, types(), self._namespace)
        return self._refs

    def member(self, kind: type[Any], spec: object, name: str, rank: int, types: WireTypes, where: Placement) -> Member:
        """See `Apart.member`."""
        if not self.keeps_all:
            return self._lines.member(kind, spec, name, rank, types, where)
        log = None if self._logs is None else self._logs / f"{name.replace('/', '-')}.log"
        closes = callable(getattr(kind, "close", None))
        origin = Origin(path_of(kind, self._packages), self._packages, types, spec, closes, log)
        return RayWorker(name, rank, origin, self._namespace, where, self._services, self._forget)

    def make_folder(self, name: str) -> Path:
        """See `Processes.make_folder`: of this machine."""
        return self._lines.make_folder(name)

    async def _begin(
        self, origin: Origin, name: str, rank: int, generation: int, where: Placement, folder: Path
    ) -> NearProcess:
        return await NearProcess.begin(self._services, self._namespace, origin, name, rank, generation, where, folder)

    def _forget(self, keeper: str, below: int) -> None:
        if self._refs is not None:
            self._shelf.forget.remote(keeper, below)

    def address(self, worker: str) -> str:
        """See `Apart.address`."""
        return f"{self._namespace} {worker}" if self.keeps_all else self._lines.address(worker)

    async def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """See `Apart.get`."""
        if not self.keeps_all:
            return await self._lines.get(ref, names)
        assert self._refs is not None
        return await self._refs.get_soon(ref, names)

    async def close(self) -> None:
        """See `Apart.close`. The cluster ends where it was started here."""
        await self._lines.close()
        if self._is_open:
            self._is_open = False
            refs, self._refs = self._refs, None
            await on_own_thread(lambda: self._leave(refs))

    def _connect(self) -> None:
        logging.getLogger("ray").setLevel(logging.ERROR)  # it warns of a handler for signals, which are ours to handle
        self._joins = not ray.is_initialized()  # else this process is in a cluster already, as a notebook's may be
        if self._joins:
            address = self._head.start() if self._address is None and self._head is not None else self._address
            if address is None:
                raise ClusterError("this process is in no Ray cluster, and is given the address of none")
            try:
                _require_somebody(address)
                ray.init(address=address, log_to_driver=False, configure_logging=False, namespace=self._namespace)
            except (RayError, OSError, RuntimeError, ValueError) as error:
                words = " ".join(str(error).split())
                raise ClusterError(
                    f"no Ray cluster lets this run in at {address}: {words[:_WORDS]}; correct runtime.address, and "
                    "give its token by RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
                ) from error

    def _set_up_shelf(self) -> None:
        shelf: Any = ray.remote(Shelf).options(
            name=SHELF, namespace=self._namespace, num_cpus=0, max_restarts=0, max_concurrency=1000
        )
        self._shelf = shelf.remote()
        ray.get(self._shelf.count.remote(), timeout=_START_S)

    def _leave(self, refs: ActorRefs | None) -> None:
        if refs is not None:
            refs.close()
            ray.kill(self._shelf, no_restart=True)
        if self._joins:
            ray.shutdown()
        if self._head is not None:
            self._head.close()


def _require_somebody(address: str) -> None:
    """Ray itself waits for minutes where nobody listens. Raises OSError."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
