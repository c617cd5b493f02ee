"""The routes of agents' sessions: the key says whose episode it is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from headrace.gateway.agents.agent_requests import AgentRequest, parse_agent_chat, parse_agent_text
from headrace.gateway.agents.agent_session import AgentSession
from headrace.gateway.agents.answered import Answered, chat_events, text_events, whole_chat, whole_text
from headrace.gateway.agents.exchanges import Delivery
from headrace.gateway.errors import ApiError, as_api_error
from headrace.gateway.http_json import read_json
from headrace.gateway.sampling import Deadline
from headrace.runtime.protocol import Services, WaitTimeout

_BODY_S = 60.0
"""In which a request's body comes, and an answer is read."""
_QUIET_S = 10.0
"""A stream that has nothing to say says so as often."""
_RETRIES = "x-stainless-retry-count"
"""How often the official clients have sent a request before."""

SessionOf = Callable[[str | None], AgentSession]
"""By the key. Raises ApiError."""
Work = Callable[[AgentSession, Any, int], tuple[AgentRequest, Callable[[], Awaitable[Answered]]]]
"""Of a session, the JSON of a request and the time: what is asked, and what answers it. Raises ApiError."""


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
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/completions", self.text),
        ]

    async def models(self, request: web.Request) -> web.StreamResponse:
        session = self._of(request)
        return web.json_response({"object": "list", "data": [_model(session)]})

    async def model(self, request: web.Request) -> web.StreamResponse:
        session, name = self._of(request), request.match_info["model"]
        if name != session.model:
            raise ApiError(f"no model {name!r} here; ask for {session.model!r}", code="model_not_found", status=404)
        return web.json_response(_model(session))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        def work(
            session: AgentSession, body: Any, created: int
        ) -> tuple[AgentRequest, Callable[[], Awaitable[Answered]]]:
            asked = parse_agent_chat(body, session.model)
            return asked, lambda: session.chat(asked, created)

        return await self._exchange(request, work, whole_chat, chat_events)

    async def text(self, request: web.Request) -> web.StreamResponse:
        def work(
            session: AgentSession, body: Any, created: int
        ) -> tuple[AgentRequest, Callable[[], Awaitable[Answered]]]:
            asked = parse_agent_text(body, session.model)
            return asked, lambda: session.text(asked, created)

        return await self._exchange(request, work, whole_text, text_events)

    def _of(self, request: web.Request) -> AgentSession:
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        return self._session_of(key.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key"))

    async def _exchange(
        self,
        request: web.Request,
        work: Work,
        whole: Callable[[Answered], dict[str, Any]],
        events: Callable[..., list[dict[str, Any]]],
    ) -> web.StreamResponse:
        session = self._of(request)
        body = await read_json(request, Deadline(self._clock, _BODY_S))
        asked, answer = work(session, body, int(self._clock.wall()))

        def begin() -> asyncio.Task[Answered]:
            session.check_room()
            return self._services.spawn(_result(answer), f"request of {session.base_url}")

        exchange = session.exchanges.claim(
            request.path, await request.read(), says_retry=_says_retry(request), begin=begin
        )
        exchange.delivery = Delivery.OPEN
        try:
            if asked.stream:
                response = await self._streamed(request, exchange.task, events, asked.include_usage)
            else:
                answered = await _whole(exchange.task)
                response = await self._sent(request, whole(answered))
        except (ConnectionError, WaitTimeout):  # the client went away, or does not read
            exchange.delivery = Delivery.BROKEN
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        except BaseException:
            exchange.delivery = Delivery.BROKEN
            raise
        exchange.delivery = Delivery.DONE
        if not exchange.task.cancelled() and exchange.task.exception() is None:
            exchange.task.result().delivered()
        return response

    async def _sent(self, request: web.Request, value: dict[str, Any]) -> web.StreamResponse:
        """Until the client has it, as far as one can know. Raises ConnectionError."""
        response = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})
        data = _dumps(value).encode()
        response.content_length = len(data)
        await response.prepare(request)
        deadline = Deadline(self._clock, _BODY_S)
        await deadline.wait(response.write(data), "the client to read its answer")
        await deadline.wait(response.write_eof(), "the client to read the end of its answer")
        return response

    async def _streamed(
        self,
        request: web.Request,
        task: asyncio.Task[Answered],
        events: Callable[..., list[dict[str, Any]]],
        include_usage: bool,
    ) -> web.StreamResponse:
        """An error that comes soon is a plain answer; a later one an event."""
        is_soon = await self._within(task)
        if is_soon:
            task.result()
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )
        await response.prepare(request)
        while not await self._within(task):
            await response.write(b": working\n\n")
        try:
            told = events(task.result(), include_usage=include_usage)
        except Exception as error:
            told = [as_api_error(error).body]
        data = "".join(f"data: {_dumps(event)}\n\n" for event in told) + "data: [DONE]\n\n"
        deadline = Deadline(self._clock, _BODY_S)
        await deadline.wait(response.write(data.encode()), "the client to read what was streamed")
        await deadline.wait(response.write_eof(), "the client to read the end of the stream")
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


async def _result(answer: Callable[[], Awaitable[Answered]]) -> Answered:
    return await answer()


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


def _dumps(value: dict[str, Any]) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
