"""A Unix socket for one episode: what reaches it reaches no other."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

_CLOSING_S = 1.0


class OwnSocket:
    """Made when it is asked for."""

    def __init__(self, app: Callable[[], web.Application]) -> None:
        self._app = app
        self._runner: web.AppRunner | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    async def path(self) -> str:
        """Where it listens. Raises OSError."""
        if self._folder is None or self._runner is None:
            self._folder = tempfile.TemporaryDirectory(prefix="headrace-api-")
            self._runner = web.AppRunner(
                self._app(), handler_cancellation=True, access_log=None, shutdown_timeout=_CLOSING_S
            )
            await self._runner.setup()
            await web.UnixSite(self._runner, self._path).start()
            Path(self._path).chmod(0o666)  # within a folder that is the run's user's alone
        return self._path

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        if self._folder is not None:
            self._folder.cleanup()

    @property
    def _path(self) -> str:
        assert self._folder is not None
        return f"{self._folder.name}/api.sock"
