"""TCP ports that the system gives out, and that it has none left."""

from __future__ import annotations

import contextlib
import errno
import socket

from headrace.errors import HeadraceError


class NoPort(HeadraceError, OSError):
    """All ports that the system gives out are taken."""


def no_port(host: str, error: OSError) -> NoPort:
    return NoPort(
        f"no TCP port is free on {host} ({error.strerror or error}); end programs that hold many, or widen the "
        "system's range (sysctl net.ipv4.ip_local_port_range)"
    )


def bind_to_any(listening: socket.socket, address: tuple[object, ...]) -> int:
    """The port, of `address`, that has 0 in its place. Raises NoPort, and OSError for a host that is not here."""
    try:
        listening.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise no_port(str(address[0]), error) from error
        raise
    return int(listening.getsockname()[1])


def free_port() -> int:
    """See `free_ports`."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Of this machine's loopback, each another one; somebody else may take them before they are used. Raises NoPort."""
    with contextlib.ExitStack() as held:
        return [bind_to_any(held.enter_context(socket.socket()), ("127.0.0.1", 0)) for _ in range(count)]
