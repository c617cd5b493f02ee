"""An engine whose answers come in the parts that a test gives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from rollout_helpers import ScriptedEngine, chunk

from headrace.engines.protocol import FinishReason, GenerateRequest, TokenChunk

Parts = list[tuple[list[int], FinishReason | None]]


class Parted(ScriptedEngine):
    """Answers in the parts that are given, of each request its own."""

    def __init__(self, *answers: Parts) -> None:
        super().__init__()
        self._answers = answers

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        parts = self._answers[len(self.requests) % len(self._answers)]
        self.requests.append(request)
        for tokens, finish in parts:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            yield chunk(tokens, finish)
