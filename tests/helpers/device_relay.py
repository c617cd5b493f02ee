"""A relay that says of itself that it can speak NCCL, on a device that nobody has."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from headrace.roles.workers.relay import RelaySpec, RelayWorker
from headrace.runtime.workers import Host
from headrace.weights.relay.journey import Plane


class DeviceRelay(RelayWorker):
    kind: ClassVar[str] = "relay"

    def __init__(self, spec: RelaySpec, host: Host) -> None:
        super().__init__(spec, host)
        self._rank = host.rank

    def plane(self, host: str) -> Plane:
        return replace(super().plane(host), devices=(f"GPU-{self._rank}",))
