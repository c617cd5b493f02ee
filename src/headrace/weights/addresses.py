"""Addresses by which processes of several machines reach each other."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

LOOPBACK = "127.0.0.1"
GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
"""By which each of them is told of an interface."""


def own_address(host: str) -> str:
    """That of this machine as one at `host` sees it: `host` itself where that is this machine's. Raises OSError."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((host, 9))  # nothing is sent: the kernel chooses where it would leave from
        return str(way.getsockname()[0])


def interface_of(address: str) -> str:
    """The network interface of this machine that has the address. Raises OSError."""
    for name, found in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == address for each in found):
            return name
    raise OSError(f"no network interface of this machine has the address {address}")


@contextmanager
def speaking_from(address: str, *libraries: str) -> Iterator[None]:
    """While it is entered, groups that are made speak from this address of this machine, by the `libraries` (`GLOO`,
    `NCCL`), each unless the environment names an interface for it. Afterwards the environment is as it was: another
    group, or a process that is started later, may be on another network. Raises OSError.

    gloo asks as a group is made, NCCL as its first message is sent, once for all that a process ever sends."""
    interface = interface_of(address)
    ours = [name for name in libraries if name not in os.environ]
    os.environ.update(dict.fromkeys(ours, interface))
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)
