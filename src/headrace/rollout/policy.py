"""The policy as workflows see it: asks engines for tokens, and hides interruptions and failures of engines."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.algorithms.kept_sets import KeptSets, joined
from headrace.engines.protocol import Engine, EngineError, FinishReason, GenerateRequest, SamplingParams, TokenChunk
from headrace.experience.messages import Tool
from headrace.experience.sample import GroupKey
from headrace.rollout.router import Router
from headrace.rollout.stop_texts import StopTexts
from headrace.rollout.tokens import Content, TextCodec
from headrace.runtime.protocol import Clock
from headrace.weights.version import Version

_MAX_ENGINE_FAILURES = 3
"""Engines that may fail under one completion before it is given up."""
_NO_PROGRESS_PAUSE_S = 0.05
"""Before asking again an engine that was interrupted before it sampled anything."""


class GenerationAborted(Exception):
    """The run aborted the request; the episode ends, and is not trained."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What the policy sampled in one call; every array has the same length."""

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    branches: NDArray[np.int32]
    finish_reason: FinishReason
    """STOP, or LENGTH when a limit on tokens ended it."""
    kept: KeptSets | None = None
    """Where they were asked for and the sampling truncates."""

    def first(self, tokens: int) -> Completion:
        """Its first so many tokens (all, if it has no more), ended there, as at a text that stops it."""
        if tokens >= len(self.tokens):
            return self
        return Completion(
            tokens=self.tokens[:tokens],
            logprobs=self.logprobs[:tokens],
            versions=self.versions[:tokens],
            branches=self.branches[:tokens],
            finish_reason=FinishReason.STOP,
            kept=None if self.kept is None else self.kept[:tokens],
        )


@dataclass(frozen=True)
class PolicySettings:
    """What all episodes of a run have in common."""

    router: Router
    text: TextCodec
    sampling: SamplingParams
    seed: int
    clock: Clock
    request_timeout_s: float
    """Limit on one completion, failures and interruptions included."""
    max_context: int | None = None
    """Longest prompt + response in tokens that the engines take; no limit of its own unless given."""
    return_kept: bool = False
    """Whether completions come with the kept sets of their tokens, as training needs them."""
    observation_role: str = "user"
    """Of what an environment says, in a chat."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion, with the token that completes one."""
    truncate_to: int | None = None
    """A prompt that has more tokens keeps the last so many."""


def noise_key(seed: int, group: GroupKey, episode: int, index: int) -> int:
    """The 64-bit key of an episode's sampling noise.

    BLAKE2b, 8 bytes, little-endian, of (seed, epoch, position, attempt, episode, index) as little-endian int64.
    With a token's absolute position it fixes each draw, so noise depends on neither batch-mates nor interruptions.
    """
    packed = struct.pack("<6q", seed, *group, episode, index)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")


class Policy:
    """The policy for one episode. No token that it gives is of a version older than `min_version`."""

    def __init__(
        self,
        settings: PolicySettings,
        *,
        group: GroupKey,
        episode: int,
        min_version: Version,
        tools: Sequence[Tool] | None = None,
        issue: int = 0,
    ) -> None:
        """`tools`: JSON schemas of what the policy may call; they are shown to it wherever messages are encoded.
        `issue`: how often the group's attempt was given out before; requests of two issues are told apart."""
        self._settings = settings
        self._tools = tools
        self._group = group
        self._episode = episode
        self._completions = Completions(
            settings.router,
            settings.sampling,
            settings.clock,
            name=f"{group}.{issue}/{episode}" if issue else f"{group}/{episode}",
            min_version=min_version,
            return_kept=settings.return_kept,
            stop=settings.stop,
            decode=partial(settings.text.decode, keep_special_tokens=True),
        )

    def encode(self, content: Content) -> NDArray[np.int32]:
        """Ids of a prompt; see `TextCodec.encode`. The tools of the prompt's row are shown in a chat, and a prompt that
        is too long loses its beginning, if `data.too_long` says so."""
        text, longest = self._settings.text, self._settings.truncate_to
        ids = text.encode(content, None if isinstance(content, str) else self._tools)
        return ids if longest is None else text.truncated_left(ids, longest)

    @property
    def observation_role(self) -> str:
        """Of what an environment says, in a chat."""
        return self._settings.observation_role

    def encode_observation(self, text: str, *, chat: bool, last_token: int | None = None) -> NDArray[np.int32]:
        """Ids of what comes after a turn of the policy, as a message of `observation_role` in a chat; see
        `TextCodec.encode_observation`."""
        return self._settings.text.encode_observation(
            text, chat=chat, last_token=last_token, role=self.observation_role, tools=self._tools
        )

    def decode(self, tokens: ArrayLike, *, keep_special_tokens: bool = False) -> str:
        """See `TextCodec.decode`."""
        return self._settings.text.decode(tokens, keep_special_tokens=keep_special_tokens)

    async def generate(
        self, prompt: Sequence[int] | NDArray[np.int32], *, max_new_tokens: int | None = None, index: int = 0
    ) -> Completion:
        """Sample after `prompt` (token ids, at least one), until a stop token, a stop text or a limit.

        `max_new_tokens` lowers or raises the run's limit. Calls with another `index` draw other noise: give one to
        each of several continuations of the same tokens. If no room is left in the context, the completion is empty
        and ends by LENGTH.

        Raises EngineError when no engine could serve it, RequestError when none ever could, WaitTimeout, and
        GenerationAborted.
        """
        settings = self._settings
        tokens = np.asarray(prompt, dtype=np.int32)
        limit = settings.sampling.max_new_tokens if max_new_tokens is None else max_new_tokens
        if settings.max_context is not None:
            limit = min(limit, settings.max_context - len(tokens))
        if limit <= 0:
            return _completion([], FinishReason.LENGTH)
        return await settings.clock.wait_for(
            self._completions.complete(tokens, limit, noise_key(settings.seed, self._group, self._episode, index)),
            settings.request_timeout_s,
            f"a completion of group {self._group}, episode {self._episode}",
        )


class Completions:
    """Asks engines for one completion after another, all under one name."""

    def __init__(
        self,
        router: Router,
        sampling: SamplingParams,
        clock: Clock,
        *,
        name: str,
        min_version: Version | None = None,
        return_kept: bool = False,
        stop: Sequence[str] = (),
        decode: Callable[[NDArray[np.int32]], str] = lambda tokens: "",
    ) -> None:
        """`name` begins the id of every request; nobody else may use it at the time. `stop`: texts that end a
        completion; `decode` gives the text of tokens, special ones included."""
        self._stop = tuple(stop)
        self._decode = decode
        self._return_kept = return_kept
        self._router = router
        self._sampling = sampling
        self._clock = clock
        self._name = name
        self._min_version = min_version
        self._requests = 0

    async def complete(self, prompt: NDArray[np.int32], limit: int, key: int) -> Completion:
        """Sample at most `limit` tokens with noise of `key`: ask until an engine ends the completion, each time with
        what was sampled before. Raises EngineError, RequestError and GenerationAborted."""
        chunks: list[TokenChunk] = []
        stops = StopTexts(self._decode, prompt, self._stop) if self._stop else None
        sampled = 0
        failed: list[int] = []
        while sampled < limit:
            request = GenerateRequest(
                request_id=f"{self._name}.{self._requests}",
                prompt=np.concatenate([prompt, *(chunk.tokens for chunk in chunks)], dtype=np.int32),
                sampling=replace(self._sampling, max_new_tokens=limit - sampled),
                noise_key=key,
                min_version=self._min_version,
                stream=stops is not None,
                return_kept=self._return_kept,
            )
            self._requests += 1
            before = sampled
            with self._router.lease(self._min_version, failed) as (engine_index, engine):
                try:
                    finish, stopped = await self._ask(engine, request, chunks, stops)
                except EngineError:
                    failed.append(engine_index)
                    if len(failed) >= _MAX_ENGINE_FAILURES or len(failed) == len(self._router.loads):
                        raise
                    finish, stopped = FinishReason.INTERRUPTED, None
            sampled = sum(len(chunk.tokens) for chunk in chunks)
            if stopped is not None:
                return _completion(chunks, FinishReason.STOP).first(stopped)
            if finish is FinishReason.ABORT:
                raise GenerationAborted(f"request {request.request_id} was aborted")
            if finish is not FinishReason.INTERRUPTED:
                return _completion(chunks, finish)
            if sampled == before:
                await self._clock.sleep(_NO_PROGRESS_PAUSE_S)
        return _completion(chunks, FinishReason.LENGTH)

    async def _ask(
        self, engine: Engine, request: GenerateRequest, chunks: list[TokenChunk], stops: StopTexts | None
    ) -> tuple[FinishReason, int | None]:
        """Append what one engine samples to `chunks`, until it says why it ended, or a stop text is complete: then the
        engine is told to end it, and how many tokens the completion has comes along."""
        finish = None
        try:
            async with aclosing(engine.generate(request)) as given:
                async for chunk in given:
                    self._check(chunk, request)
                    chunks.append(chunk)
                    stopped = None if stops is None else stops.push(chunk.tokens)
                    if stopped is not None:
                        return FinishReason.STOP, stopped
                    if chunk.finish_reason is not None:
                        finish = chunk.finish_reason
            if finish is None:
                raise EngineError(f"request {request.request_id} ended without a finish reason")
        finally:
            if finish is None:
                engine.abort((request.request_id,))
        return finish, None

    def _check(self, chunk: TokenChunk, request: GenerateRequest) -> None:
        lengths = {len(chunk.tokens), len(chunk.logprobs), len(chunk.versions), len(chunk.branches)}
        if len(lengths) != 1:
            raise EngineError(f"request {request.request_id}: a chunk whose arrays differ in length")
        if request.return_kept and request.sampling.truncates and len(chunk.tokens):
            _check_kept(chunk, request)
        if self._min_version is None:
            return
        branch, number = self._min_version
        old = (chunk.branches < branch) | ((chunk.branches == branch) & (chunk.versions < number))
        if old.any():
            at = int(old.argmax())
            served = Version(int(chunk.branches[at]), int(chunk.versions[at]))
            raise EngineError(f"request {request.request_id} asked for {self._min_version}, but was served by {served}")


def _completion(chunks: Sequence[TokenChunk], finish: FinishReason) -> Completion:
    return Completion(
        tokens=np.concatenate([np.empty(0, np.int32), *(chunk.tokens for chunk in chunks)], dtype=np.int32),
        logprobs=np.concatenate([np.empty(0, np.float32), *(chunk.logprobs for chunk in chunks)], dtype=np.float32),
        versions=np.concatenate([np.empty(0, np.int32), *(chunk.versions for chunk in chunks)], dtype=np.int32),
        branches=np.concatenate([np.empty(0, np.int32), *(chunk.branches for chunk in chunks)], dtype=np.int32),
        finish_reason=finish,
        kept=joined([chunk.kept for chunk in chunks], [len(chunk.tokens) for chunk in chunks]),
    )


def _check_kept(chunk: TokenChunk, request: GenerateRequest) -> None:
    """Raises EngineError unless each token came with a kept set that it is in."""
    kept = chunk.kept
    if kept is None or len(kept) != len(chunk.tokens) or not (kept.counts > 0).all():
        raise EngineError(f"request {request.request_id}: tokens of a cut distribution came without kept sets")
    if not kept.contain(chunk.tokens).all():
        raise EngineError(f"request {request.request_id}: a token is outside its kept set")
