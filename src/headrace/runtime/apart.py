"""Where a runtime has workers that are not in its own process: processes of this machine, or actors of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from headrace.runtime.local.local_refs import Keepers
from headrace.runtime.local.service import Service
from headrace.runtime.local.worker_group import Member
from headrace.runtime.protocol import Services
from headrace.runtime.refs import Ref, Refs
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Placement


class Apart(Protocol):
    """Given to the runtime that is to have some. Made at the first use, ended with the runtime."""

    @property
    def keeps_all(self) -> bool:
        """Whether what the controller puts is kept there as well: others could not ask it."""

    async def open(
        self, services: Services, types: Callable[[], WireTypes], keepers: Keepers, find: Callable[[str], Service]
    ) -> Refs:
        """What is kept elsewhere. `keepers` and `find`: what is kept in this process, and its workers by name."""

    def member(self, kind: type[Any], spec: object, name: str, rank: int, types: WireTypes, where: Placement) -> Member:
        """Not started. Raises ValueError for a class that may not be run there."""

    def address(self, worker: str) -> str:
        """By which others reach it; the controller's for the empty name."""

    def devices(self, worker: str) -> Sequence[str]:
        """Those of a cluster that the worker has, as `slot 0 of NODE`; none where nobody has given it a place."""

    async def get(self, ref: Ref, names: Collection[str] | None = None) -> Mapping[str, Any]:
        """What is kept elsewhere. Raises RefLost."""

    async def close(self) -> None:
        """Once all workers have ended: nothing is left."""
