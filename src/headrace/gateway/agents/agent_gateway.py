"""The listener that agents speak to: one of a process, for all of its episodes; on loopback, but for agents outside."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from aiohttp import web

from headrace.config.gateway import GatewayConfig
from headrace.gateway.agents.agent_session import AgentSession
from headrace.gateway.agents.episode_place import EpisodePlace
from headrace.gateway.agents.model_renderer import ModelRenderer
from headrace.gateway.agents.own_folder import OwnFolder
from headrace.gateway.agents.session_routes import EPISODE, SessionOf, SessionRoutes, closed
from headrace.gateway.agents.task_routes import TaskRoutes
from headrace.gateway.app import GUARDED, errors_as_json
from headrace.gateway.errors import ApiError
from headrace.gateway.server import HttpServer, serve
from headrace.rollout.policy import Policy
from headrace.runtime.protocol import Services

_ON_LOOPBACK = ("127.0.0.1", 0)
_MIB = 2**20


class AgentGateway:
    """Implements `Sessions`. Each episode has a key of its own, and nothing is answered without one; but tasks, for
    agents outside, are given out as `TaskRoutes` says."""

    def __init__(
        self,
        config: GatewayConfig,
        services: Services,
        tasks: TaskRoutes | None = None,
        renderer: ModelRenderer | None = None,
        at: tuple[str, int] = _ON_LOOPBACK,
    ) -> None:
        """`tasks`: for agents outside, where this process gives them out. `renderer`: of the model; without one its
        chat template renders. `at`: host and port to listen on."""
        self._at = at
        self._tasks = tasks
        self._config = config
        self._renderer = renderer
        self._services = services
        self._secret = secrets.token_bytes(32)
        self._sessions: dict[int, AgentSession] = {}
        self._folder = OwnFolder()
        self._opened = 0
        self._server: HttpServer | None = None

    async def start(self) -> None:
        """Raises ConfigError if it cannot listen."""
        app, tasks = self._app(self._session_at, EPISODE), self._tasks
        if tasks is not None:
            app[GUARDED] = tasks.is_guarded
            app.add_routes(tasks.routes)
        self._server = await serve(app, *self._at)
        if tasks is not None:
            tasks.listen(self._server.address)

    async def close(self) -> None:
        """Its end, and that of all sessions."""
        if self._tasks is not None:
            self._tasks.close()
        for session in self._sessions.values():
            session.close()
        if self._server is not None:
            await self._server.close()
        self._folder.close()

    @asynccontextmanager
    async def open(self, policy: Policy) -> AsyncGenerator[AgentSession, None]:
        """See `Sessions.open`."""
        assert self._server is not None
        number, self._opened = self._opened, self._opened + 1
        own = EpisodePlace(
            lambda: self._folder.of(number), lambda: self._app(lambda key, _: self._session_of(key, number))
        )
        address = f"{self._server.address}{EPISODE.format(episode=number)}/v1"
        session = AgentSession(policy, self._config, address, self._key(number), own, self._renderer)
        self._sessions[number] = session
        try:
            yield session
        finally:
            del self._sessions[number]
            await session.ended()
            await own.close()

    def _app(self, session_of: SessionOf, under: str = "") -> web.Application:
        app = web.Application(middlewares=[errors_as_json], client_max_size=self._config.max_body_mib * _MIB)
        app[GUARDED] = True
        app.add_routes(SessionRoutes(session_of, self._services, under).routes)
        return app

    def _key(self, number: int) -> str:
        mark = hmac.new(self._secret, str(number).encode(), "sha256").hexdigest()[:32]
        return f"hr-{number}-{mark}"

    def _session_at(self, key: str | None, episode: str | None) -> AgentSession:
        """See `_session_of`."""
        number = int(episode) if episode and episode.isascii() and episode.isdigit() and len(episode) <= 18 else -1
        return self._session_of(key, number)

    def _session_of(self, key: str | None, episode: int) -> AgentSession:
        """Raises ApiError for a key that is none, or another episode's, and for one of an episode that was closed."""
        number = _number(key or "")
        given = (key or "").encode(errors="surrogateescape")
        if number is None or not hmac.compare_digest(given, self._key(number).encode()):
            told = "there is no key" if not key else "the key is none of this run's"
            raise ApiError(f"{told}; send the episode's api_key as a bearer token", status=401, code="invalid_api_key")
        if number != episode:
            raise ApiError(
                "the key is another episode's; send the api_key that came with this base_url",
                status=401,
                code="invalid_api_key",
            )
        session = self._sessions.get(number)
        if session is None or not session.is_open:
            raise closed()
        return session


def _number(key: str) -> int | None:
    parts = key.split("-")
    if len(parts) != 3 or not (parts[1].isascii() and parts[1].isdigit()) or len(parts[1]) > 18:
        return None
    return int(parts[1])
