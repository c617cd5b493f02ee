"""The routes of agents' sessions: below a path of its own where episodes share a listener, with the episode's key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from aiohttp import web

from headrace.gateway.agents.agent_apis import APIS, MESSAGES, AgentApi
from headrace.gateway.agents.agent_requests import AgentRequest, ChatRequest
from headrace.gateway.agents.agent_session import AgentSession
from headrace.gateway.agents.answered import Answered
from headrace.gateway.agents.exchanges import Exchange
from headrace.gateway.agents.growing import Live
from headrace.gateway.agents.plain_json import check_plain, is_surely_plain
from headrace.gateway.agents.reader import Reader
from headrace.gateway.errors import ApiError, as_api_error
from headrace.gateway.http_json import dumps, read_body
from headrace.gateway.sampling import Deadline
from headrace.runtime.protocol import Services, WaitTimeout

_BODY_S = 60.0
"""In which a request's body comes, and what is sent is read."""
_QUIET_S = 10.0
"""A stream that has nothing to say says so as often."""
_WORKING = b": working\n\n"
_WHOLE = {"Content-Type": "application/json; charset=utf-8"}
_STREAMED = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
_RETRIES = "x-stainless-retry-count"
"""How often the official clients have sent a request before."""
_UNKNOWN = "1970-01-01T00:00:00Z"
"""When a model was released, where that is not known."""
_LONGEST_COUNT = 10
"""Digits."""

SessionOf = Callable[[str | None, str | None], AgentSession]
"""By the key, and the episode that the path names, if it names one. Raises ApiError."""
EPISODE = "/episodes/{episode}"
"""The path of one, where episodes share a listener."""


class _ClientGone(Exception):
    """It went away, or does not read."""


class _Streamed(web.StreamResponse):
    _send_headers_immediately = False
    """They go out with the first events, by one call."""


class SessionRoutes:
    """Requests of all episodes."""

    def __init__(self, session_of: SessionOf, services: Services, under: str = "") -> None:
        """`under`: the path that they are below."""
        self._session_of = session_of
        self._under = under
        self._services = services
        self._clock = services.clock

    @property
    def routes(self) -> list[web.RouteDef]:
        return [
            *(web.post(f"{self._under}{path}", partial(self.answer, api)) for path, api in APIS.items()),
            web.post(f"{self._under}/v1/messages/count_tokens", self.count),
            web.get(f"{self._under}/v1/models", self.models),
            web.get(f"{self._under}/v1/models/{{model:.+}}", self.model),
        ]

    async def models(self, request: web.Request) -> web.StreamResponse:
        session = self._of(request)
        one_page = {"has_more": False, "first_id": session.model, "last_id": session.model}
        return web.json_response({"object": "list", "data": [_model(session)], **one_page})

    async def model(self, request: web.Request) -> web.StreamResponse:
        session, name = self._of(request), request.match_info["model"]
        if name != session.model:
            raise ApiError(f"no model {name!r} here; ask for {session.model!r}", code="model_not_found", status=404)
        return web.json_response(_model(session))

    def _of(self, request: web.Request) -> AgentSession:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        given = key.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key")
        return self._session_of(given, request.match_info.get("episode"))

    async def count(self, request: web.Request) -> web.StreamResponse:
        """Tokens of what a message would be the answer to, as Anthropic's API counts them."""
        session: AgentSession | None = None
        try:
            session = self._of(request)
            async with self._body(request, session) as (_, body):
                asked = MESSAGES.parse(body, session)
                assert isinstance(asked, ChatRequest)
                return web.json_response({"input_tokens": await session.count(asked)}, dumps=dumps)
        except Exception as error:
            return _refusal(as_api_error(error), MESSAGES, session)

    async def answer(self, api: AgentApi, request: web.Request) -> web.StreamResponse:
        """To a request of any API, in its words."""
        session: AgentSession | None = None
        try:
            session = self._of(request)
            return await self._exchange(request, api, session)
        except Exception as error:
            return _refusal(as_api_error(error), api, session)

    async def _claimed(
        self, request: web.Request, api: AgentApi, session: AgentSession
    ) -> tuple[Exchange[Answered], AgentRequest]:
        """The exchange of a request, and what its answer is worded by: of its body nothing is left here."""

        def begin() -> Exchange[Answered]:
            session.check_room()
            live = Live() if asked.stream else None
            work = session.answer(asked, created, live)
            return Exchange(self._services.spawn(work, f"request of {session.base_url}"), live=live)

        async with self._body(request, session) as (data, body):
            asked, created = api.parse(body, session), int(self._clock.wall())
            exchange = session.exchanges.claim(request.path, data, retry=_retries(request), begin=begin)
        return exchange, asked.without_prompt()

    async def _exchange(self, request: web.Request, api: AgentApi, session: AgentSession) -> web.StreamResponse:
        exchange, asked = await self._claimed(request, api, session)
        with exchange.reading() as delivered:
            try:
                if asked.stream:
                    response = await self._streamed(request, exchange, Reader(api, asked), session.refused)
                else:
                    whole = dumps(api.whole(asked, await _whole(exchange.task)))
                    response = await self._sent(request, whole.encode(), _WHOLE)
            except _ClientGone:
                if request.transport is not None:
                    request.transport.abort()
                return web.Response()
            delivered()
        if not exchange.task.cancelled() and exchange.task.exception() is None:
            exchange.task.result().delivered()
        return response

    @asynccontextmanager
    async def _body(self, request: web.Request, session: AgentSession) -> AsyncGenerator[tuple[bytes, Any], None]:
        """One of those that the session reads at once. Others wait and are not refused: what is a retry of what runs
        is known only by its body. Raises ApiError, also where the session was closed meanwhile, and WaitTimeout."""
        deadline = Deadline(self._clock, _BODY_S)
        await deadline.wait(session.bodies.acquire(), "room for the request's body")
        try:
            body = await _plain(request, deadline)
            if not session.is_open:
                raise closed()
            yield body
        finally:
            session.bodies.release()

    async def _sent(self, request: web.Request, data: bytes, headers: Mapping[str, str]) -> web.StreamResponse:
        """Until the client has it, as far as one can know. Head and body go out by one call, and wake the client once.
        Raises _ClientGone."""
        response = web.Response(body=data, headers=headers)
        await self._within(response.prepare(request))
        await self._within(response.write_eof())
        return response

    async def _streamed(
        self,
        request: web.Request,
        exchange: Exchange[Answered],
        reader: Reader,
        refused: Callable[[ApiError], None],
    ) -> web.StreamResponse:
        """What is certain goes out as it comes, all that is new by one call; where nothing is for long, a comment. An
        error before all that is raised, for a plain answer; a later one is an event, and `refused` is told. Raises
        _ClientGone."""
        response, task, live = _Streamed(headers=_STREAMED), exchange.task, exchange.live
        quiet_at = self._clock.now() + _QUIET_S
        while live is not None and not task.done():
            seen, data = live.changes, reader.news(live)
            if not data and self._clock.now() >= quiet_at:
                data = _WORKING
            if data:
                if not response.prepared:
                    await self._within(response.prepare(request))
                await self._within(response.write(data))
                quiet_at = self._clock.now() + _QUIET_S
            with suppress(WaitTimeout):
                await live.wait(seen, self._clock, quiet_at - self._clock.now())
        try:
            data = reader.rest(await _whole(task))
        except Exception as error:
            if not response.prepared:
                raise
            told = as_api_error(error)
            refused(told)
            data = reader.failure(told)
        if not response.prepared:
            return await self._sent(request, data, _STREAMED)
        await self._within(response.write_eof(data))
        return response

    async def _within(self, writing: Awaitable[object]) -> None:
        """Raises _ClientGone if it is, or does not read for long."""
        try:
            await Deadline(self._clock, _BODY_S).wait(writing, "the client to read its answer")
        except (ConnectionError, WaitTimeout) as error:
            raise _ClientGone from error


def _refusal(told: ApiError, api: AgentApi, session: AgentSession | None) -> web.StreamResponse:
    """In the words of the API; the session is told, where the request has one."""
    if session is not None:
        session.refused(told)
    return web.json_response(api.error(told), status=told.status, dumps=dumps)


def closed() -> ApiError:
    return ApiError("the episode of this key was closed; nothing more is answered", status=401, code="episode_closed")


async def _whole(task: asyncio.Task[Answered]) -> Answered:
    if not task.done():
        await asyncio.wait([task])
    if task.cancelled():
        raise closed()
    return task.result()


async def _plain(request: web.Request, deadline: Deadline) -> tuple[bytes, Any]:
    """The body, and its JSON. Raises ApiError, WaitTimeout."""
    try:
        data, body = await read_body(request, deadline)
        if not is_surely_plain(data):
            check_plain(body)
        return data, body
    except ValueError as error:
        raise ApiError(f"the body cannot be used: {error}") from error
    except web.HTTPRequestEntityTooLarge as error:
        raise ApiError(f"the body is too large (gateway.max_body_mib): {error.text}", status=413) from error


def _retries(request: web.Request) -> int:
    count = request.headers.get(_RETRIES, "0")
    return int(count) if count.isdecimal() and len(count) < _LONGEST_COUNT else 0


def _model(session: AgentSession) -> dict[str, Any]:
    """As OpenAI has it, and Anthropic: each client takes what it knows."""
    openai = {"object": "model", "created": 0, "owned_by": "headrace"}
    anthropic = {"type": "model", "display_name": session.model, "created_at": _UNKNOWN, "lifecycle": "active"}
    return {"id": session.model, **openai, **anthropic}
