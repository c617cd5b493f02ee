"""An engine whose answers come piece by piece, when the test lets them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from rollout_helpers import EOS, ScriptedEngine, chunk, ids

from headrace.engines.protocol import FinishReason, GenerateRequest, TokenChunk


class PiecesEngine(ScriptedEngine):
    """Of each answer: texts, an error that is raised, or how it ends without the stop token. The last answer serves all
    requests that follow."""

    def __init__(self, *answers: Sequence[str | Exception | FinishReason]) -> None:
        super().__init__()
        self._answers = answers
        self._let = asyncio.Semaphore(0)
        self.ended = 0
        """Answers that were given to their end."""

    def let(self, pieces: int = 1000) -> None:
        """So many more go out."""
        for _ in range(pieces):
            self._let.release()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        pieces = self._answers[min(len(self.requests), len(self._answers) - 1)]
        self.requests.append(request)
        for piece in pieces:
            await asyncio.sleep(0)  # who came later is not always behind
            await self._let.acquire()
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, FinishReason):
                yield chunk([], piece)
                return
            yield chunk(ids(piece), None)
        self.ended += 1
        yield chunk([EOS])
