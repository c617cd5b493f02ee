"""The contract between whoever wants tokens and whoever samples them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.kept_sets import KeptSets
from headrace.errors import HeadraceError
from headrace.runtime.patience import StandStill
from headrace.weights.plane import WeightReceiver
from headrace.weights.version import Version


class EngineError(HeadraceError, RuntimeError):
    """An engine could not serve a request, or died. Costs the request, never the run."""


class UncertainVersions(EngineError):
    """Tokens that were handed out may be of other versions than they were said to be: nobody goes on from them."""


class VersionHeld(EngineError):
    """Somebody has pinned the version for so long that what waits for it gives up, to be asked again: no fault of the
    engine, nor of what is to take its place. The message says how long."""


class RequestError(ValueError):
    """A request that no engine could serve: an id outside the vocabulary, a prompt longer than the context."""


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    """Ended by `abort`; what was sampled so far is returned."""
    INTERRUPTED = "interrupted"
    """A weight update cut it off, or the engine went to sleep; ask again with prompt + tokens to go on (by an update,
    `embedded` never does it)."""


class Tag(StrEnum):
    """Memory of an engine that can be given back for a while."""

    WEIGHTS = "weights"
    KV = "kv"
    """Keys and values."""


class SwapMode(StrEnum):
    """What a weight update does to sequences in flight (design, 3.6)."""

    RECOMPUTE = "recompute"
    KEEP = "keep"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The distribution to sample from, and when to stop. `temperature` is 0 (greedy), or from 0.01 to 100."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 means no limit."""
    stop_token_ids: tuple[int, ...] = ()
    """A sampled stop token ends the sequence and is kept as its last token."""

    @property
    def truncates(self) -> bool:
        """Whether tokens are sampled from a distribution cut by top-k or top-p."""
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    request_id: str
    prompt: NDArray[np.int32]
    """Token ids, shape [P], P >= 1."""
    sampling: SamplingParams
    noise_key: int
    """64-bit key of the sampling noise; with the token's position in prompt + response it fixes each draw."""
    min_version: Version | None = None
    """Only weights that may serve what asks for it (`Version.serves`) do."""
    stream: bool = False
    """True: chunks while tokens are sampled. False: one chunk at the end."""
    return_kept: bool = False
    """Chunks bring the kept set of each token, where the sampling truncates."""
    client: tuple[str, ...] = ()
    """Who asks, from the widest to the narrowest, as (address, number of the HTTP request): an engine shares its slots
    evenly among those of each level. A run's own requests are all of one client."""
    experts_from: int | None = None
    """Chunks bring the experts that tokens were routed to, of those from this place in prompt + response on; None:
    nobody wants them, or the engine knows none."""
    soon: bool = True
    """Of a stream: chunks come as soon as tokens were sampled, whatever that costs. False: at the engine's own pace."""


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """Newly sampled tokens of one request, in order; every array has the same length (possibly 0)."""

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    branches: NDArray[np.int32]
    finish_reason: FinishReason | None = None
    """Set on the last chunk only."""
    kept: KeptSets | None = None
    """Of the tokens, if there are any, where they were asked for and the sampling truncates."""
    experts: NDArray[np.unsignedinteger] | None = None
    """[m, layers, k], uint8 or uint16, where they were asked for (`experts_from`): of the tokens behind those of the
    chunk before, up to the one before the last sampled token, whose experts are known once it is fed. The first chunk
    has the prompt's. Of each token those of the pass that first computed it for this request."""


@dataclass(frozen=True, slots=True)
class SwapReport:
    """What a weight swap cost."""

    version: Version
    flip_s: float
    """Seconds in which no decode step ran because the weights were being exchanged."""
    prefill_s: float
    """Seconds spent prefilling interrupted sequences again (`recompute`)."""
    recomputed_tokens: int
    interrupted: int
    """Sequences in flight at the flip."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Running totals since the engine started, and its load now."""

    running: int
    waiting: int
    generated_tokens: int
    prefilled_tokens: int
    decode_steps: int
    busy_s: float
    """Seconds in which the engine computed."""
    swap_stall_s: float
    recompute_s: float = 0.0
    """Of `busy_s` and `swap_stall_s`: seconds in which what new weights interrupted was computed again."""
    idle_s: float = 0.0
    """Seconds in which there was nothing that it could compute."""
    sent_away_tokens: int = 0
    """Of requests that it sent away as it went to sleep, those that it had computed: others compute them again."""
    gave_way: int = 0
    """Times that a sequence had to wait again, and be computed again, since its KV cache had no pages left for all."""


class Engine(Protocol):
    """Asynchronous token source. All methods are called from the run's event loop."""

    @property
    def version(self) -> Version:
        """The version that the next decode step samples from; it only grows."""

    @property
    def rests(self) -> bool:
        """It lives and samples nothing: since it is asleep, or what it has loaded is of no version, as when an update
        failed. What is asked of it waits so long, or ends with INTERRUPTED."""

    @property
    def asleep(self) -> tuple[Tag, ...]:
        """Of its memory what it gave back by `sleep` and has not again; empty while it is awake."""

    @property
    def gives_kept_sets(self) -> bool:
        """Whether it can say which ids top-k and top-p left of each token (`GenerateRequest.return_kept`)."""

    @property
    def failure(self) -> Exception | None:
        """Why the engine died, or None while it lives. A dead engine serves nothing more."""

    @property
    def quiet(self) -> StandStill | None:
        """Stands while nothing is heard of the engine, which may have died: what waits for it uses up nobody's time.
        None of one that cannot fall silent."""

    @property
    def slots(self) -> int:
        """Sequences that are decoded together; known once the engine has started."""

    async def start(self) -> None:
        """Allocate, and begin to serve. Raises EngineError if it cannot."""

    async def stop(self) -> None:
        """End every request with ABORT and release what `start` took."""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk]:
        """Sample until a stop condition. Raises RequestError before the first token for a bad request, and EngineError
        where the model's logits are not finite.

        Closing it early aborts the request: leave it by `aclosing`.
        """

    def abort(self, request_ids: Iterable[str]) -> None:
        """End these requests with finish reason ABORT; ids that are not running are ignored."""

    async def update(self, receiver: WeightReceiver, mode: SwapMode) -> SwapReport | None:
        """Take the newest whole version. None if it is loaded already. The old one stays on failure. Of one whose
        weights are asleep: the newest, be it the one that it had; then they are awake."""

    async def sleep(self, tags: Sequence[Tag], *, sends_away: bool = False) -> None:
        """Give this memory back, once no pin holds its version; nothing is sampled until all is awake. Requests in
        flight, and those that come, wait: they go on from the tokens that they have. With `sends_away` they end with
        INTERRUPTED, at once, and so do those that come until it is awake. Weights are dropped, not kept:
        only `update` brings them back, so that it never serves without, nor with others than the newest. What sleeps
        already, sleeps on. Raises EngineError."""

    async def wake(self, tags: Sequence[Tag]) -> None:
        """Have this memory again, and serve once none is asleep. Raises EngineError where it has no room for it, and
        for weights that no `update` has brought."""

    def pin(self) -> PinnedVersion:
        """Hold the present version until released (evaluation): `update` waits for it."""

    def stats(self) -> EngineStats: ...


class PinnedVersion(Protocol):
    @property
    def version(self) -> Version: ...

    @property
    def is_lost(self) -> bool:
        """The engine does not hold the version, though it lives."""

    def release(self) -> None:
        """Idempotent."""
