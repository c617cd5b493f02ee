"""By which host a client has found a listener, and whether that may lead here from elsewhere."""

from __future__ import annotations

from aiohttp import web

from headrace.config.values.hosts import is_loopback
from headrace.gateway.errors import ApiError


def asked_host(request: web.Request) -> str:
    """Without a port. Raises ApiError."""
    try:
        return request.url.host or ""
    except ValueError as error:
        raise ApiError(f"the header Host is {request.host!r}, which is no address: {error}", param="Host") from error


def loopback_host(request: web.Request, mend: str) -> str:
    """`asked_host`, where no token is asked for. Raises ApiError for one beyond loopback: a page in a browser on this
    machine may have had its own name lead to here (DNS rebinding), and whatever it then sends is of its own origin."""
    host = asked_host(request)
    if not is_loopback(host):
        raise ApiError(
            f"the header Host is {request.host!r}, which is not on loopback, and no token is asked for; {mend}",
            param="Host",
            status=403,
            code="host_not_allowed",
        )
    return host
