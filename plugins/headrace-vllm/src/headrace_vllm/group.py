"""A version as Headrace sends it, over a gloo group of its process, rank 0, and those of vLLM behind it.

What is sent is what lies in a slot (`publication.py`) behind its header, some bytes in each broadcast; then the sums of
what each had, as whole numbers of 64 bits, in one broadcast more.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, TCPStore
from torch.distributed.distributed_c10d import ProcessGroupGloo

PREFIX = "headrace"
"""Of the group's keys in the store."""


class DamagedError(RuntimeError):
    """What came is not what was sent."""


class Group:
    """Its own: vLLM's groups know nothing of it."""

    def __init__(self, address: str, rank: int, size: int, seconds: float) -> None:
        """Once all are there. `address`: of the store, as `127.0.0.1:4000`. `seconds`: that any wait for another one
        may take. Raises RuntimeError."""
        host, _, port = address.rpartition(":")
        timeout = timedelta(seconds=seconds)
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=_own_address(host, int(port)))]
        options._threads = 1
        options._timeout = timeout
        store = TCPStore(host, int(port), timeout=timeout, wait_for_workers=False)
        self._group: Any = ProcessGroupGloo(PrefixStore(PREFIX, store), rank, size, options)
        self.address = address

    def received(self, size: int, at_once: int) -> torch.Tensor:
        """`size` bytes, so many `at_once`. Raises RuntimeError, DamagedError."""
        data = torch.empty(size, dtype=torch.uint8)
        parts = data.split(at_once)
        for part in parts:
            self._group.broadcast(part, 0).wait()
        told = torch.empty(len(parts), dtype=torch.int64)
        self._group.broadcast(told, 0).wait()
        found = torch.stack([part.view(torch.int64).sum() for part in parts])
        if not torch.equal(found, told):
            raise DamagedError(f"what came from {self.address} is not what was sent")
        return data


def _own_address(host: str, port: int) -> str:
    """Of this machine, on the way there. Raises OSError."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as way:
        way.connect(address)  # sends nothing
        found: str = way.getsockname()[0]
        return found
