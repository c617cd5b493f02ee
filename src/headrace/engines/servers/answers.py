"""What came of one request of a server, and of which versions it is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np

from headrace.engines.protocol import EngineError, FinishReason, GenerateRequest, TokenChunk
from headrace.engines.servers.dialect import Piece, Span
from headrace.weights.version import Version


@dataclass(eq=False, slots=True)
class Answer:
    asked: GenerateRequest
    pieces: asyncio.Queue[TokenChunk | Exception] = field(default_factory=asyncio.Queue)
    held: list[TokenChunk] = field(default_factory=list)
    """Of a version whose check has not passed."""
    pump: asyncio.Task[None] | None = None
    """Who reads it."""
    is_read: bool = False
    """To its end."""
    is_over: bool = False
    """Nothing more is handed out: whoever asked has left, or what came is of weights that were refused."""
    _stamped: list[tuple[Version, int]] = field(default_factory=list)
    """Version, and tokens of it, in their order."""

    def stamp(self, piece: Piece, version: Version) -> TokenChunk:
        """The piece, all of whose tokens are of `version`. Raises EngineError where the server says something else of
        the answer, at its end."""
        count = len(piece.tokens)
        if count:
            self._stamped.append((version, count))
        if piece.finish is not None and piece.spans is not None:
            self._require_agreement(piece.spans)
        cut = piece.finish is FinishReason.ABORT  # whoever aborts it here reads no more
        return TokenChunk(
            piece.tokens,
            piece.logprobs,
            np.full(count, version.number, np.int32),
            np.full(count, version.branch, np.int32),
            FinishReason.INTERRUPTED if cut else piece.finish,
            piece.kept,
        )

    def release(self) -> None:
        """Hand out what was held."""
        for chunk in self.held:
            self.pieces.put_nowait(chunk)
        self.held.clear()

    def end(self, finish: FinishReason) -> None:
        """Without what is held, and without what may still come."""
        self.held.clear()
        if not self.is_over:
            self.is_over = True
            none = np.empty(0, np.int32)
            self.pieces.put_nowait(TokenChunk(none, np.empty(0, np.float32), none, none, finish))

    def _require_agreement(self, spans: tuple[Span, ...]) -> None:
        """Of the weights that it was started with, a server knows no name."""
        told = [(span.version, span.end - span.start) for span in spans if span.end > span.start]
        stamped: list[tuple[str, int]] = []
        for version, count in self._stamped:
            name = name_of(version)
            if stamped and stamped[-1][0] == name:
                stamped[-1] = (name, stamped[-1][1] + count)
            else:
                stamped.append((name, count))
        if [count for _, count in told] != [count for _, count in stamped] or any(
            name not in ("default", own) for (name, _), (own, _) in zip(told, stamped, strict=False)
        ):
            raise EngineError(
                f"request {self.asked.request_id}: the server says that its tokens are of {told}, and they were taken "
                f"for {stamped}"
            )


def name_of(version: Version) -> str:
    """As the server knows it."""
    return f"{version.branch}.{version.number}"
