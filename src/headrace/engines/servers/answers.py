"""What came of one request of a server, and of which versions it is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np

from headrace.engines.protocol import FinishReason, GenerateRequest, TokenChunk, UncertainVersions
from headrace.engines.servers.dialect import Piece, Span
from headrace.engines.validate import check_finite
from headrace.weights.version import Version

_NO_NAME = "default"
"""What servers say of weights that they were told no name of."""


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
    is_unheard: bool = False
    """It goes on at the server, though that was told several times to end it."""
    _stamped: list[tuple[str, bool, int]] = field(default_factory=list)
    """Name of a version, whether the server was told it, and tokens of it, in their order."""

    @property
    def has_begun(self) -> bool:
        """A token of it came."""
        return bool(self._stamped)

    def stamp(self, piece: Piece, version: Version, *, is_named: bool) -> TokenChunk:
        """The piece, all of whose tokens are of `version`. `is_named`: the server was told its name. Raises EngineError
        for log-probs that are not finite, and UncertainVersions where the server says something else of the answer, at
        its end."""
        check_finite(self.asked.request_id, piece.tokens, piece.logprobs)
        count = len(piece.tokens)
        if count:
            self._stamped.append((name_of(version), is_named, count))
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
            self.pieces.put_nowait(nothing(finish))

    def _require_agreement(self, spans: tuple[Span, ...]) -> None:
        """Of the weights that it was started with, and of no others, a server knows no name."""
        told = [(span.version, span.end - span.start) for span in spans if span.end > span.start]
        stamped: list[tuple[str, bool, int]] = []
        for name, is_named, count in self._stamped:
            if stamped and stamped[-1][:2] == (name, is_named):
                count += stamped.pop()[2]
            stamped.append((name, is_named, count))
        if len(told) != len(stamped) or any(
            count != taken or (name != own and (is_named or name != _NO_NAME))
            for (name, count), (own, is_named, taken) in zip(told, stamped, strict=True)
        ):
            raise UncertainVersions(
                f"request {self.asked.request_id}: the server says that its tokens are of {told}, and they were taken "
                f"for {[(own, taken) for own, _, taken in stamped]}"
            )


def nothing(finish: FinishReason) -> TokenChunk:
    """The end of a request, without a token."""
    none = np.empty(0, np.int32)
    return TokenChunk(none, np.empty(0, np.float32), none, none, finish)


def name_of(version: Version) -> str:
    """As the server knows it."""
    return f"{version.branch}.{version.number}"
