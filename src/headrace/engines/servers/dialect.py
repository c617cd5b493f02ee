"""What an inference server has to be able to do, whatever it calls it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.kept_sets import KeptSets
from headrace.engines.protocol import FinishReason, GenerateRequest, SwapMode
from headrace.engines.servers.window import ServerLoad
from headrace.weights.plane import WeightOffer


class Span(NamedTuple):
    """Tokens of an answer, one after another, that one version sampled, as the server says."""

    version: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What came of one request since the last piece; the arrays have one length."""

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    kept: KeptSets | None = None
    finish: FinishReason | None = None
    """With the last piece."""
    spans: tuple[Span, ...] | None = None
    """With the last piece: of the whole answer."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Of a server."""

    model: Mapping[str, Any]
    """What tells the model from others: its identity, see `models/config_identity.py`."""
    max_context: int
    dtype: str
    truncates: bool = False
    """Whether kept sets are asked for."""
    most_kept: int = 0
    """The largest `top_k` that they are asked for under; 0: none, or any."""
    model_type: str = ""
    """Of the whole model, where `model` is its text part."""
    weights: str = ""
    """Where the run's own weights lie, with the model's config: a folder, or a name on the Hub."""


class Dialect(Protocol):
    """One server, by HTTP. All methods raise EngineError: ServerGone where it does not answer."""

    name: str
    """Of the server, with its version, once it has been `met`."""
    together: int | None
    """Sequences that it computes at once, once it has been `met`; None where it does not say."""
    retracts: bool
    """Whether what is in flight rests in mode `recompute` too, and goes on with keys and values that the new weights
    compute. Else that ends it."""

    async def is_up(self) -> bool:
        """Whether it can be asked for tokens. Raises ConfigError where the token is refused."""

    async def meet(self, expected: Expected) -> None:
        """Find out what it can do. Raises ConfigError for one that has another model, or cannot do what is needed, with
        the mend."""

    def stream(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        """Leaving it early aborts the request."""

    async def abort(self, request_ids: Iterable[str]) -> None: ...

    async def pause(self, mode: SwapMode) -> None:
        """Nothing is sampled once this returns and `sampled` was answered. What is in flight ends (`recompute`, unless
        it `retracts`; with `drain` there is nothing), or rests."""

    async def resume(self) -> None: ...

    async def load(self, offer: WeightOffer, name: str) -> None:
        """Exchange the weights for those of the offer, called `name` in spans. The server is paused."""

    async def score(self, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        """[S, T - 1]: log-probs, at temperature 1, of each of `tokens` [S, T] but the first. Behind each sample one
        token more is sampled, which counts as handed out."""

    async def fares(self) -> ServerLoad | None:
        """Now; None if it does not say."""

    async def sampled(self) -> int | None:
        """Tokens that it has handed out since it started, of all requests; None if it does not say. One that `retracts`
        says it at any time at which it is paused or has nothing to do, and once all of them have come."""
