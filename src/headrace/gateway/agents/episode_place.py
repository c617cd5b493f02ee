"""A folder and a Unix socket for one episode: what reaches the socket reaches no other episode."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from aiohttp import web

_CLOSING_S = 1.0


class EpisodePlace:
    """The folder of an episode, and the socket in it: both are made when they are asked for."""

    def __init__(self, folder: Callable[[], Path], app: Callable[[], web.Application]) -> None:
        self._make_folder = folder
        self._app = app
        self._runner: web.AppRunner | None = None
        self._folder: Path | None = None

    def folder(self) -> Path:
        """Raises OSError, ConfigError."""
        if self._folder is None:
            self._folder = self._make_folder()
        return self._folder

    async def socket(self) -> str:
        """The path of the socket, which listens. Raises OSError, ConfigError."""
        path = self.folder() / "api.sock"
        if self._runner is None:
            self._runner = web.AppRunner(
                self._app(), handler_cancellation=True, access_log=None, shutdown_timeout=_CLOSING_S
            )
            await self._runner.setup()
            await web.UnixSite(self._runner, str(path)).start()
            path.chmod(0o666)  # within a folder that is the run's user's alone
        return str(path)

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
