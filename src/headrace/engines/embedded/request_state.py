"""One request on its way through the engine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.kept_sets import KeptSets, joined
from headrace.engines.protocol import FinishReason, GenerateRequest, TokenChunk
from headrace.weights.version import Version


class Sequence:
    """The tokens of one request, prompt and response, and how many of them are in the KV cache.

    Between two steps a running sequence has `cached == length - 1`: the next decode step feeds its last token.
    """

    __slots__ = (
        "_experts",
        "_kept",
        "_logprobs",
        "_spans",
        "_tokens",
        "cached",
        "emitted",
        "finish_reason",
        "in_flight",
        "kv_version",
        "length",
        "limit",
        "prompt_key",
        "prompt_length",
        "request",
        "routed",
    )

    def __init__(self, request: GenerateRequest, max_context: int) -> None:
        self.request = request
        self.prompt_length = len(request.prompt)
        self.limit = min(self.prompt_length + request.sampling.max_new_tokens, max_context)
        self.length = self.prompt_length
        self.cached = 0
        """Leading tokens whose keys and values are in the cache."""
        self.kv_version: Version | None = None
        """The version that computed the prompt's keys and values, while they are whole."""
        self.emitted = 0
        """Response tokens that were handed out."""
        self.in_flight = False
        """True once the sequence was given room in the cache."""
        self.finish_reason: FinishReason | None = None
        self.prompt_key = np.ascontiguousarray(request.prompt, dtype=np.int32).tobytes()
        self._tokens = np.empty(self.limit, dtype=np.int32)
        self._tokens[: self.prompt_length] = request.prompt
        self._logprobs = np.empty(self.limit - self.prompt_length, dtype=np.float32)
        self._spans: list[tuple[int, Version]] = []
        """Where in the response each version begins, in order."""
        self._kept: list[KeptSets] = []
        """Of the tokens that were not handed out yet."""
        self.routed = request.experts_from
        """Leading tokens of which whoever asks has the experts, or will have with the next chunk; None if nobody wants
        them."""
        self._experts: list[NDArray[np.unsignedinteger]] = []
        """That were not handed out yet."""

    @property
    def client(self) -> tuple[str, ...]:
        return self.request.client

    @property
    def last_token(self) -> int:
        return int(self._tokens[self.length - 1])

    @property
    def wants_kept(self) -> bool:
        """Whether each token's kept set is to be handed out with it."""
        return self.request.return_kept and self.request.sampling.truncates

    @property
    def room(self) -> int:
        """Tokens that may still be sampled."""
        return self.limit - self.length

    @property
    def sampled(self) -> int:
        """Response tokens."""
        return self.length - self.prompt_length

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def token_ids(self, start: int, stop: int) -> NDArray[np.int32]:
        return self._tokens[start:stop]

    def append(
        self,
        tokens: NDArray[np.int64],
        logprobs: NDArray[np.float32],
        version: Version,
        stopped: bool,
        kept: KeptSets | None = None,
    ) -> None:
        """Take the tokens of consecutive decode steps of one version. `stopped`: the last one is a stop token. `kept`:
        theirs, if `wants_kept`."""
        done, count = self.length - self.prompt_length, len(tokens)
        if not self._spans or self._spans[-1][1] != version:
            self._spans.append((done, version))
        self._tokens[self.length : self.length + count] = tokens
        self._logprobs[done : done + count] = logprobs
        if kept is not None:
            self._kept.append(kept)
        self.length += count
        self.cached = self.length - 1
        if stopped:
            self.finish_reason = FinishReason.STOP
        elif self.length == self.limit:
            self.finish_reason = FinishReason.LENGTH

    def add_experts(self, experts: NDArray[np.unsignedinteger]) -> None:
        """Of the cached tokens behind the first `routed`."""
        self._experts.append(experts)
        self.routed = self.cached

    def drop_cache(self) -> None:
        """Forget the keys and values: they have to be computed again."""
        self.cached = 0
        self.kv_version = None

    def take_chunk(self) -> TokenChunk:
        """What was sampled since the last chunk."""
        start, stop = self.emitted, self.length - self.prompt_length
        self.emitted = stop
        kept, self._kept = self._kept, []
        experts, self._experts = self._experts, []
        versions = np.empty(stop - start, dtype=np.int32)
        branches = np.empty(stop - start, dtype=np.int32)
        for first, version in self._spans:
            versions[max(first - start, 0) :] = version.number
            branches[max(first - start, 0) :] = version.branch
        return TokenChunk(
            self._tokens[self.prompt_length + start : self.length].copy(),
            self._logprobs[start:stop].copy(),
            versions,
            branches,
            self.finish_reason,
            joined(kept, map(len, kept)),
            np.concatenate(experts) if experts else None,
        )
