"""The listener that gives tasks out, where the episodes are played in other processes."""

from __future__ import annotations

from aiohttp import web

from headrace.gateway.agents.task_routes import TaskRoutes
from headrace.gateway.app import GUARDED, errors_as_json
from headrace.gateway.server import HttpServer, serve

_MOST_BODY_BYTES = 2**20


class TaskListener:
    """Each task has the address of the listener that plays it."""

    def __init__(self, tasks: TaskRoutes, at: tuple[str, int]) -> None:
        """`at`: host and port to listen on."""
        self._tasks = tasks
        self._at = at
        self._server: HttpServer | None = None

    async def start(self) -> None:
        """Raises ConfigError if it cannot listen."""
        app = web.Application(middlewares=[errors_as_json], client_max_size=_MOST_BODY_BYTES)
        app[GUARDED] = self._tasks.is_guarded
        app.add_routes(self._tasks.routes)
        self._server = await serve(app, *self._at)
        self._tasks.listen(self._server.address)

    async def close(self) -> None:
        """Its end: nobody is given a task any more."""
        self._tasks.close()
        if self._server is not None:
            await self._server.close()
