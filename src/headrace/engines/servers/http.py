"""HTTP to one inference server."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import aiohttp

from headrace.config.errors import ConfigError
from headrace.engines.protocol import EngineError
from headrace.runtime.protocol import Clock, WaitTimeout

_CONNECT_S = 10.0
DENIED = (401, 403)
"""By which it says that the token is not one that it takes."""
_MOST_WORDS = 300
"""Characters of what a server says of an error."""


class ServerGone(EngineError):
    """Nobody answers there, or the answer broke off."""


class ServerRefused(EngineError):
    """It answered, and not with what was asked for."""

    def __init__(self, what: str, route: str, status: int, text: str) -> None:
        """`route`: method and path, as `POST /pause`."""
        super().__init__(f"{what}: the server answered {status} to {route}: {_brief(text)}")
        self.status = status
        self.text = text


class ServerHttp:
    """Each call and each stream has a connection of its own: a server closes one that rested, or that an error was
    answered on, at the very moment in which the next request goes there. Streams are as many as are asked for."""

    def __init__(
        self, url: str, clock: Clock, token: str | None = None, of_routes: Mapping[str, str | None] | None = None
    ) -> None:
        """`of_routes`: by path, the token of a route that has another one than `token`."""
        self.url = url.rstrip("/")
        self._clock = clock
        self._token = token
        self._of_routes = {} if of_routes is None else of_routes
        self._calls: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None
        self.fault: EngineError | None = None
        """Why it does not answer well, by `answers`."""

    async def open(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        self._calls = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(force_close=True))
        self._streams = aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(limit=0, force_close=True)
        )

    async def close(self) -> None:
        for session in (self._calls, self._streams):
            if session is not None:
                await session.close()
        self._calls = self._streams = None

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        what: str,
        seconds: float,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """The JSON that is answered, or text that is none. Raises ServerGone (also after `seconds`), ServerRefused for
        a status from 400."""
        assert self._calls is not None
        asking = self._answer(self._calls, method, path, body, query, what)
        try:
            return await self._clock.wait_for(asking, seconds, what)
        except WaitTimeout as late:
            raise ServerGone(f"{self.url}: {late}") from late
        except (aiohttp.ClientError, OSError) as error:
            raise ServerGone(f"{what}: {self.url} does not answer: {_words(error)}") from error

    async def answers(self, path: str, *, seconds: float) -> bool:
        """Whether GET of `path` is answered well, within so many seconds. Raises ConfigError where the token is
        refused."""
        try:
            await self.call("GET", path, what="its health", seconds=seconds)
        except ServerRefused as error:
            self.fault = error
            if error.status in DENIED:
                raise ConfigError(denied(self.url, error.status)) from error
            return False
        except ServerGone as error:
            self.fault = error
            return False
        self.fault = None
        return True

    async def _answer(
        self,
        session: aiohttp.ClientSession,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str] | None,
        what: str,
    ) -> Any:
        headers = self._headers(path)
        async with session.request(
            method, self.url + path, json=body, params=query, headers=headers, allow_redirects=False
        ) as answer:
            text = await answer.text()
            if answer.status >= 300:
                raise ServerRefused(what, f"{method} {path}", answer.status, text)
            try:
                return json.loads(text)
            except ValueError:
                return text

    async def events(self, path: str, body: Mapping[str, Any], *, what: str) -> AsyncGenerator[dict[str, Any]]:
        """What the server sends as events, until it says that it is done. Raises ServerGone where it breaks off, or
        says by a status from 500 that it cannot serve, and ServerRefused. Leaving early closes the connection."""
        assert self._streams is not None
        done = False
        try:
            headers = self._headers(path)
            async with self._streams.post(self.url + path, json=body, headers=headers, allow_redirects=False) as answer:
                if answer.status >= 300:
                    refused = ServerRefused(what, f"POST {path}", answer.status, await answer.text())
                    raise ServerGone(str(refused)) if answer.status >= 500 else refused
                left = b""
                while part := await answer.content.readany():
                    *lines, left = (left + part).split(b"\n")
                    for line in lines:
                        data = line.removeprefix(b"data:").strip()
                        if not line.startswith(b"data:") or not data:
                            continue
                        if data == b"[DONE]":
                            done = True
                            return
                        yield _event(data, what)
        except (aiohttp.ClientError, OSError) as error:
            raise ServerGone(f"{what}: the answer of {self.url} broke off: {_words(error)}") from error
        if not done:
            raise ServerGone(f"{what}: the answer of {self.url} broke off")

    def _headers(self, path: str) -> dict[str, str]:
        token = self._of_routes.get(path, self._token)
        return {} if token is None else {"Authorization": f"Bearer {token}"}


def denied(where: str, status: int, key: str = "engine.token_env", what: str = "the token that it takes") -> str:
    """That a server refuses who asks, by a status of DENIED, and the mend. `where`: its name or URL. `key`: of the
    config, which names the variable that holds `what`."""
    return f"{where} refuses who asks ({status}); set {key} to the name of an environment variable that holds {what}"


def _event(data: bytes, what: str) -> dict[str, Any]:
    """Raises ServerGone for what is no event: the stream is of no use from there on."""
    try:
        event = json.loads(data)
    except ValueError as error:
        raise ServerGone(f"{what}: the server sent {data[:80]!r}, which is no JSON") from error
    if not isinstance(event, dict):
        raise ServerGone(f"{what}: the server sent {data[:80]!r}, which is no event")
    return event


def _brief(text: str) -> str:
    """On one line: it may be a page of HTML."""
    words = " ".join(text.split())
    return words if len(words) <= _MOST_WORDS else words[: _MOST_WORDS - 3] + "..."


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
