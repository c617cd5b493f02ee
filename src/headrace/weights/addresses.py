"""Addresses by which processes of several machines reach each other."""

from __future__ import annotations

import socket

import psutil

LOOPBACK = "127.0.0.1"


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
