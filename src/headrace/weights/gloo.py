"""Groups of processes that speak by gloo, over one address of each."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

from torch.distributed import Store, TCPStore
from torch.distributed.distributed_c10d import ProcessGroupGloo

from headrace.runtime.ports import bind_to_any


def listening_store(host: str, seconds: float) -> tuple[TCPStore, int]:
    """By which a group finds together, and its port, at an address of this machine. `seconds`: that any wait for
    somebody else may take. Raises OSError, of which NoPort is one."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as listening:
        port = bind_to_any(listening, address)
        listening.listen()
        store = TCPStore(  # which by itself would listen at every address of this machine
            host,
            port,
            is_master=True,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )
    return store, port


def gloo_group(store: Store, rank: int, size: int, host: str, seconds: float) -> Any:
    """Once all of the group are there. `host`: the address that this process speaks from. `seconds`: that an operation
    may take. Raises RuntimeError."""
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname=host)]
    options._threads = 1
    options._timeout = timedelta(seconds=seconds)
    return ProcessGroupGloo(store, rank, size, options)
