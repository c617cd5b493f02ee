"""JSON in, JSON or server-sent events out."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from aiohttp import web

from headrace.experience.text.strict_json import finite, refuse_constant
from headrace.gateway.errors import ApiError, as_api_error
from headrace.gateway.sampling import Deadline
from headrace.runtime.protocol import WaitTimeout

_JSON = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


async def read_json(request: web.Request, deadline: Deadline) -> Any:
    """See `read_body`."""
    return (await read_body(request, deadline))[1]


async def read_body(request: web.Request, deadline: Deadline) -> tuple[bytes, Any]:
    """The body, and its JSON. It can be read once: the request keeps nothing of it, however long its answer takes.

    Raises ApiError for another content type, or for what is no strict JSON, HTTPRequestEntityTooLarge, WaitTimeout.
    """
    # A page in a browser cannot send this type to another origin without asking first, and is not answered.
    if request.content_type != "application/json":
        raise ApiError("the body must be JSON: send Content-Type: application/json", status=415)
    body = await deadline.wait(_all_of(request), "the request's body")
    try:
        return body, json.loads(body, parse_constant=refuse_constant, parse_float=finite)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the body is not JSON: {error}") from error


async def _all_of(request: web.Request) -> bytes:
    """`request.read()`, but that it keeps what it has read."""
    body = bytearray()
    while chunk := await request.content.readany():
        body += chunk
        if len(body) > request.client_max_size:
            raise web.HTTPRequestEntityTooLarge(request.client_max_size)
    return bytes(body)


async def send_json(request: web.Request, value: dict[str, Any], deadline: Deadline) -> web.StreamResponse:
    """Until the client has it, as far as one can know. Raises ConnectionError, WaitTimeout."""
    response = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})
    data = dumps(value).encode()
    response.content_length = len(data)
    await response.prepare(request)
    await deadline.wait(response.write(data), "the client to read its answer")
    await deadline.wait(response.write_eof(), "the client to read the end of its answer")
    return response


def respond(value: dict[str, Any]) -> web.Response:
    return web.json_response(value, dumps=dumps)


async def stream_events(
    request: web.Request, events: AsyncGenerator[dict[str, Any], None], deadline: Deadline
) -> web.StreamResponse:
    """Server-sent events, then `[DONE]`.

    An error before the first event is raised, for a plain answer; a later one is an event of its own. A client that
    goes away, or does not read until the deadline, ends the stream and closes `events`.
    """
    async with aclosing(events):
        first = await anext(events)
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )
        try:
            await response.prepare(request)
            async with aclosing(_data(first, events)) as lines:
                async for line in lines:
                    await deadline.wait(response.write(line), "the client to read what was streamed")
            await deadline.wait(response.write_eof(), "the client to read the end of the stream")
        except (ConnectionError, WaitTimeout):
            if request.transport is not None:
                request.transport.abort()
        return response


async def _data(first: dict[str, Any], events: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[bytes, None]:
    yield _line(dumps(first))
    try:
        async for event in events:
            yield _line(dumps(event))
    except Exception as error:
        yield _line(dumps(as_api_error(error).body))
    yield _line("[DONE]")


def _line(data: str) -> bytes:
    return f"data: {data}\n\n".encode()


def dumps(value: dict[str, Any]) -> str:
    """Strict JSON, as short as it gets."""
    return _JSON.encode(value)
