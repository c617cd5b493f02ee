"""`headrace.serve`, and what is awaited of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from headrace.api import background
from headrace.api.errors import for_caller
from headrace.config.model import EngineConfig
from headrace.config.reading.load import load_config
from headrace.config.template import TemplateConfig
from headrace.runtime.lane_thread import LaneThread

_CLOSING_S = 60.0


class Server:
    """A model that is being served, until it is closed. A context manager."""

    def __init__(self, address: str, ended: Future[None], stop: background.Stop) -> None:
        self.address = address
        """As `http://127.0.0.1:8000`."""
        self._ended = ended
        self._stop = stop

    def __repr__(self) -> str:
        return f"<headrace server {self.address}{', closed' if self._ended.done() else ''}>"

    def close(self) -> None:
        """Requests in flight are given up. Idempotent. Raises what ended it early."""
        self._stop.request_soon("closed")
        self._ended.result(_CLOSING_S)

    def wait(self) -> None:
        """Until it ends, or a signal comes, which closes it."""
        try:
            self._ended.result()
        except KeyboardInterrupt:
            self.close()
            raise

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def serve(
    model: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    seed: int = 0,
    template: Mapping[str, Any] = MappingProxyType({}),
    **engine: Any,
) -> Server:
    """Serve a model over HTTP as `headrace serve` does, and return once requests are answered.

    `port` 0 is any that is free. `token`: what clients must send; beyond loopback there must be one. `seed`: of the
    sampling noise of requests without one. `template`: what would stand under `data.template` in a config. `engine`:
    keys of the config's section of this name, as `max_concurrent_sequences`. Raises ConfigError before the model is
    loaded.
    """
    server, ready = _start(str(model), host, port, token, seed, template, engine)
    try:
        return server(ready.result())
    except BaseException as error:
        raise for_caller(error) from None


async def aserve(
    model: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    seed: int = 0,
    template: Mapping[str, Any] = MappingProxyType({}),
    **engine: Any,
) -> Server:
    """As `serve`, while the caller's event loop goes on."""
    server, ready = _start(str(model), host, port, token, seed, template, engine)
    try:
        return server(await asyncio.wrap_future(ready))
    except asyncio.CancelledError:
        server("").close()
        raise
    except BaseException as error:
        raise for_caller(error) from None


class _Starting:
    """Makes the Server once its address is known."""

    def __init__(self, ended: Future[None], stop: background.Stop) -> None:
        self._ended = ended
        self._stop = stop

    def __call__(self, address: str) -> Server:
        return Server(address, self._ended, self._stop)


def _start(
    model: str,
    host: str,
    port: int,
    token: str | None,
    seed: int,
    template: Mapping[str, Any],
    engine: Mapping[str, Any],
) -> tuple[_Starting, Future[str]]:
    """And the address, when requests are answered; or what went wrong before."""
    try:
        config, chat = load_config(EngineConfig, engine), load_config(TemplateConfig, template)
    except Exception as error:
        raise for_caller(error) from None
    stop = background.stop_request("")
    ready: Future[str] = Future()
    thread = LaneThread("serve")

    def run() -> None:
        from headrace.controller.serve import serve_model
        from headrace.runtime.event_loop import run_to_end

        run_to_end(
            lambda: serve_model(
                model,
                config,
                host=host,
                port=port,
                token=token,
                seed=seed,
                template=chat,
                ready=ready.set_result,
                stop=stop,
            ),
            "headrace.serve",
        )

    def end(ended: Future[None]) -> None:
        thread.close()
        if not ready.done():
            ready.set_exception(ended.exception() or RuntimeError("the server was closed before it answered"))

    future = thread.submit(run)
    future.add_done_callback(end)
    return _Starting(future, stop), ready
