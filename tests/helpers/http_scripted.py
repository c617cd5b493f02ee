"""A tokenizer of bytes, and an engine that says what the test wrote down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headrace.engines.protocol import (
    EngineStats,
    FinishReason,
    GenerateRequest,
    PinnedVersion,
    SwapMode,
    SwapReport,
    TokenChunk,
)
from headrace.weights.plane import WeightReceiver
from headrace.weights.version import INITIAL, Version

EOS = 256
USER = 257
ASSISTANT = 258
VOCAB = 260

_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('system must come first') }}{% endif %}"
    "<user>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_tokenizer(chat_template: str | None = _TEMPLATE) -> PreTrainedTokenizerFast:
    """Ids 0 to 255 are the bytes; then <eos>, <user>, <assistant>."""
    letters = {value: letter for letter, value in zip(_byte_letters(), range(256), strict=True)}
    tokenizer = Tokenizer(models.BPE(vocab={letters[i]: i for i in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<eos>", "<user>", "<assistant>")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", chat_template=chat_template)


def _byte_letters() -> list[str]:
    """GPT-2's letter for each byte: printable ones stand for themselves, the others follow from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def ids(text: str, *more: int) -> list[int]:
    return [*text.encode(), *more]


def logprob(place: int) -> float:
    """Of the response's token at `place`: exact in float32."""
    return -(place + 1) / 8


@dataclass
class Reply:
    """What the engine samples for one request."""

    tokens: Sequence[int]
    finish: FinishReason = FinishReason.STOP
    chunk: int = 1
    """Tokens in a chunk, when streamed."""
    versions: Sequence[tuple[int, int]] = ()
    """(branch, number) of each token; (0, 0) unless given."""
    fails_after: int | None = None
    """Chunks after which `error` is raised."""
    error: Exception | None = None
    hangs_after: int | None = None
    """Chunks after which nothing more comes."""


@dataclass
class ScriptedEngine:
    """Replies in the order of requests; the last one is repeated."""

    replies: list[Reply]
    requests: list[GenerateRequest] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    version: Version = INITIAL
    failure: Exception | None = None
    gives_kept_sets: bool = True
    quiet = None
    rests = False
    asleep = ()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        reply = self.replies[min(len(self.requests), len(self.replies) - 1)]
        self.requests.append(request)
        size = reply.chunk if request.stream else max(1, len(reply.tokens))
        starts = range(0, max(1, len(reply.tokens)), size)
        try:
            for count, start in enumerate(starts):
                await asyncio.sleep(0)
                if count == reply.fails_after:
                    assert reply.error is not None
                    raise reply.error
                if count == reply.hangs_after:
                    await asyncio.Event().wait()
                yield self._chunk(reply, start, size, last=start == starts[-1])
        finally:
            self.closed.append(request.request_id)

    def _chunk(self, reply: Reply, start: int, size: int, last: bool) -> TokenChunk:
        tokens = reply.tokens[start : start + size]
        versions = [reply.versions[place] if reply.versions else (0, 0) for place in range(start, start + len(tokens))]
        return TokenChunk(
            tokens=np.array(tokens, dtype=np.int32),
            logprobs=np.array([logprob(start + place) for place in range(len(tokens))], dtype=np.float32),
            versions=np.array([number for _, number in versions], dtype=np.int32),
            branches=np.array([branch for branch, _ in versions], dtype=np.int32),
            finish_reason=reply.finish if last else None,
        )

    def abort(self, request_ids: Iterable[str]) -> None:
        self.aborted.extend(request_ids)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def update(self, receiver: WeightReceiver, mode: SwapMode) -> SwapReport | None:
        raise NotImplementedError

    def pin(self) -> PinnedVersion:
        raise NotImplementedError

    def stats(self) -> EngineStats:
        raise NotImplementedError


def text_of(choices: list[dict[str, Any]], index: int = 0) -> str:
    """The text that streamed choices add up to, of a completion or a chat."""
    parts = [choice for choice in choices if choice["index"] == index]
    return "".join(part["text"] if "text" in part else part["delta"].get("content", "") for part in parts)
