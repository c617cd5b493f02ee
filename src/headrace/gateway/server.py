"""A listening socket for the application; beyond loopback only with a token."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from aiohttp import web

from headrace.config import ConfigError
from headrace.config.values.hosts import is_loopback
from headrace.gateway.app import GUARDED
from headrace.runtime.ports import no_port

_SHUTDOWN_S = 5.0
"""How long requests in progress may go on once the server is told to close."""


@dataclass(frozen=True, slots=True)
class HttpServer:
    """An application that listens."""

    address: str
    """As `http://127.0.0.1:8000`, with the port that was given out if 0 was asked for."""
    _runner: web.AppRunner

    async def close(self) -> None:
        await self._runner.cleanup()


async def serve(app: web.Application, host: str, port: int) -> HttpServer:
    """Listen. A client that goes away cancels its request.

    Raises ConfigError for a host beyond loopback unless the application asks for a token, or if it cannot listen;
    NoPort where any port would do, and none is free.
    """
    check_host(host, guarded=app[GUARDED])
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=_SHUTDOWN_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except (OSError, OverflowError) as error:
        await runner.cleanup()
        if port == 0 and isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise no_port(host, error) from error
        raise ConfigError(f"cannot listen on {host}:{port}: {error}; choose another host or port") from error
    address, bound = runner.addresses[0][:2]
    return HttpServer(f"http://[{address}]:{bound}" if ":" in address else f"http://{address}:{bound}", runner)


def check_host(host: str, *, guarded: bool) -> None:
    """Raises ConfigError for a host beyond loopback, unless a token is asked for there (`guarded`)."""
    if not guarded and not is_loopback(host):
        raise ConfigError(
            f"host is {host!r}, which others can reach, and no token is set; set a token, or use 127.0.0.1"
        )
