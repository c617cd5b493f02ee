"""Requests in flight at an engine that is a worker, of one client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from headrace.engines.liveness import Liveness
from headrace.engines.protocol import EngineError, GenerateRequest, RequestError, TokenChunk
from headrace.engines.remote_types import CallEngine, RequestFailed
from headrace.runtime.protocol import Services


class RemoteRequests:
    """Whatever is asked for in one turn of the event loop goes in one message."""

    def __init__(self, call: CallEngine, services: Services, client: str, liveness: Liveness) -> None:
        """`call`: a method of the engine's worker. `client`: who asks. `liveness`: of the engine: one that is dead is
        asked for nothing."""
        self._call = call
        self._services = services
        self._client = client
        self._liveness = liveness
        self._chunks: dict[str, asyncio.Queue[TokenChunk | RequestFailed]] = {}
        self._to_submit: list[GenerateRequest] = []
        self._to_abort: list[str] = []
        self._telling: asyncio.Task[None] | None = None

    @property
    def tasks(self) -> Sequence[asyncio.Task[None]]:
        """What tells the engine of them, if anything is to be told."""
        return () if self._telling is None else (self._telling,)

    def submit(self, request: GenerateRequest) -> asyncio.Queue[TokenChunk | RequestFailed]:
        """What comes of it. Raises RequestError if its id is in use."""
        if request.request_id in self._chunks:
            raise RequestError(f"request id {request.request_id!r} is in use; give each request its own")
        chunks = self._chunks[request.request_id] = asyncio.Queue()
        self._to_submit.append(request)
        self._tell_soon()
        return chunks

    def abort(self, request_ids: Iterable[str]) -> None:
        """Those of them that are in flight."""
        mine = [each for each in request_ids if each in self._chunks]
        if mine and not self._liveness.is_dead:
            self._to_abort += mine
            self._tell_soon()

    def put(self, request_id: str, chunk: TokenChunk | RequestFailed) -> None:
        """It has come for a request that is perhaps forgotten."""
        chunks = self._chunks.get(request_id)
        if chunks is not None:
            chunks.put_nowait(chunk)

    def forget(self, request_id: str) -> None:
        """Nobody waits for it."""
        self._chunks.pop(request_id, None)

    def end(self, why: str) -> None:
        """Nothing more comes. What has come is handed out before they fail."""
        for request_id in self._chunks:
            self.put(request_id, RequestFailed(f"request {request_id!r} was lost: {why}"))

    def _tell_soon(self) -> None:
        if self._telling is None or self._telling.done():
            self._telling = self._services.spawn(self._tell(), "requests to an engine")

    async def _tell(self) -> None:
        while (self._to_submit or self._to_abort) and not self._liveness.is_dead:
            requests, self._to_submit = self._to_submit, []
            aborted, self._to_abort = self._to_abort, []
            try:
                if requests:
                    await self._call("submit", self._client, requests, what="requests to be taken")
                if aborted:
                    await self._call("abort", self._client, aborted, what="requests to be ended")
            except EngineError as error:
                for request in requests:
                    self.put(request.request_id, RequestFailed(str(error)))
