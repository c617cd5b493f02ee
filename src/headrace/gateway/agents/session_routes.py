"""The routes of agents' sessions: the key says whose episode it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from headrace.gateway.agents.agent_apis import APIS, AgentApi
from headrace.gateway.agents.agent_requests import AgentRequest
from headrace.gateway.agents.agent_session import AgentSession
from headrace.gateway.agents.answered import Answered
from headrace.gateway.errors import ApiError, as_api_error
from headrace.gateway.http_json import read_json
from headrace.gateway.sampling import Deadline
from headrace.runtime.protocol import Services, WaitTimeout

_BODY_S = 60.0
"""In which a request's body comes, and an answer is read."""
_QUIET_S = 10.0
"""A stream that has nothing to say says so as often."""
_WHOLE = {"Content-Type": "application/json; charset=utf-8"}
_STREAMED = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
_RETRIES = "x-stainless-retry-count"
"""How often the official clients have sent a request before."""

SessionOf = Callable[[str | None], AgentSession]
"""By the key. Raises ApiError."""


class _ClientGone(Exception):
    """It went away, or does not read."""


@contextmanager
def _from_client() -> Iterator[None]:
    try:
        yield
    except (ConnectionError, WaitTimeout) as error:
        raise _ClientGone from error


class SessionRoutes:
    """Requests of all episodes."""

    def __init__(self, session_of: SessionOf, services: Services) -> None:
        self._session_of = session_of
        self._services = services
        self._clock = services.clock

    @property
    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/models", self.models),
            web.get("/v1/models/{model:.+}", self.model),
            *(web.post(path, self.answer) for path in APIS),
        ]

    async def models(self, request: web.Request) -> web.StreamResponse:
        session = self._of(request)
        return web.json_response({"object": "list", "data": [_model(session)]})

    async def model(self, request: web.Request) -> web.StreamResponse:
        session, name = self._of(request), request.match_info["model"]
        if name != session.model:
            raise ApiError(f"no model {name!r} here; ask for {session.model!r}", code="model_not_found", status=404)
        return web.json_response(_model(session))

    def _of(self, request: web.Request) -> AgentSession:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        return self._session_of(key.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key"))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """To a request of any API, in its words."""
        api = APIS[request.path]
        try:
            return await self._exchange(request, api)
        except Exception as error:
            told = as_api_error(error)
            return web.json_response(api.error(told), status=told.status, dumps=_dumps)

    async def _exchange(self, request: web.Request, api: AgentApi) -> web.StreamResponse:
        session = self._of(request)
        body = await self._body(request)
        asked, created = api.parse(body, session), int(self._clock.wall())

        def begin() -> asyncio.Task[Answered]:
            session.check_room()
            return self._services.spawn(session.answer(asked, created), f"request of {session.base_url}")

        exchange = session.exchanges.claim(
            request.path, await request.read(), says_retry=_says_retry(request), begin=begin
        )
        with exchange.reading() as delivered:
            try:
                if asked.stream:
                    response = await self._streamed(request, exchange.task, api, asked)
                else:
                    whole = _dumps(api.whole(asked, await _whole(exchange.task)))
                    response = await self._sent(request, whole.encode(), _WHOLE)
            except _ClientGone:
                if request.transport is not None:
                    request.transport.abort()
                return web.Response()
            delivered()
        if not exchange.task.cancelled() and exchange.task.exception() is None:
            exchange.task.result().delivered()
        return response

    async def _body(self, request: web.Request) -> Any:
        """Raises ApiError, WaitTimeout."""
        try:
            return await read_json(request, Deadline(self._clock, _BODY_S))
        except web.HTTPRequestEntityTooLarge as error:
            raise ApiError(f"the body is too large (gateway.max_body_mib): {error.text}", status=413) from error

    async def _sent(self, request: web.Request, data: bytes, headers: Mapping[str, str]) -> web.StreamResponse:
        """Until the client has it, as far as one can know. Head and body go out by one call, and wake the client once.
        Raises _ClientGone."""
        response = web.Response(body=data, headers=headers)
        with _from_client():
            await response.prepare(request)
            await Deadline(self._clock, _BODY_S).wait(response.write_eof(), "the client to read its answer")
        return response

    async def _streamed(
        self, request: web.Request, task: asyncio.Task[Answered], api: AgentApi, asked: AgentRequest
    ) -> web.StreamResponse:
        """An error that comes soon is raised, for a plain answer; a later one is an event. Raises _ClientGone."""
        if await self._within(task):
            return await self._sent(request, _events(api, asked, task.result()), _STREAMED)
        response = web.StreamResponse(headers=_STREAMED)
        with _from_client():
            await response.prepare(request)
        try:
            while not await self._within(task):
                with _from_client():
                    await response.write(b": working\n\n")
            data = _events(api, asked, task.result())
        except _ClientGone:
            raise
        except Exception as error:
            data = _event("error", api.error(as_api_error(error))) + api.last
        with _from_client():
            await Deadline(self._clock, _BODY_S).wait(response.write_eof(data), "the client to read what was streamed")
        return response

    async def _within(self, task: asyncio.Task[Answered]) -> bool:
        """Whether the task ends soon."""
        try:
            await self._clock.wait_for(asyncio.wait([task]), _QUIET_S, "an answer")
        except WaitTimeout:
            return task.done()
        if task.cancelled():
            raise closed()
        return True


def closed() -> ApiError:
    return ApiError("the episode of this key was closed; nothing more is answered", status=401, code="episode_closed")


async def _whole(task: asyncio.Task[Answered]) -> Answered:
    await asyncio.wait([task])
    if task.cancelled():
        raise closed()
    return task.result()


def _says_retry(request: web.Request) -> bool:
    count = request.headers.get(_RETRIES, "0")
    return count.isdecimal() and int(count) > 0


def _model(session: AgentSession) -> dict[str, Any]:
    return {"id": session.model, "object": "model", "created": 0, "owned_by": "headrace"}


def _events(api: AgentApi, asked: AgentRequest, answered: Answered) -> bytes:
    """The whole stream."""
    return b"".join(_event(name, event) for name, event in api.events(asked, answered)) + api.last


def _event(name: str | None, data: dict[str, Any]) -> bytes:
    named = "" if name is None else f"event: {name}\n"
    return f"{named}data: {_dumps(data)}\n\n".encode()


def _dumps(value: dict[str, Any]) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
