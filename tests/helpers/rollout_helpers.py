"""What the tests of this room share: a tokenizer of characters, an engine that follows a script, rewards on paper."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headrace.engines.pool import EnginePool
from headrace.engines.protocol import EngineError, FinishReason, GenerateRequest, SamplingParams, TokenChunk
from headrace.experience.sample import GroupKey
from headrace.experience.text.tokens import TextCodec
from headrace.rewards.outcome import RewardOutcome
from headrace.rollout.policy import Policy, PolicySettings
from headrace.runtime.inline import SystemClock
from headrace.weights.version import INITIAL, Version

EOS = 1
CHAT_TEMPLATE = (
    "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}"
    "{% if m['role'] == 'assistant' %}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def char_tokenizer(*, chat: bool = False) -> PreTrainedTokenizerFast:
    """One id for each printable ASCII character; `<pad>` is 0, `<eos>` is 1, `<unk>` is 2."""
    names = ["<pad>", "<eos>", "<unk>", *(chr(code) for code in range(32, 127))]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    fast.backend_tokenizer.decoder = decoders.Fuse()
    if chat:
        fast.chat_template = CHAT_TEMPLATE
    return fast


def ids(text: str) -> np.ndarray:
    return np.array([ord(letter) - 32 + 3 for letter in text], dtype=np.int32)


Script = Callable[[GenerateRequest], TokenChunk | Exception | None]
"""The chunk that answers a request, what is raised, or None to hang."""


def chunk(
    tokens: Iterable[int], finish: FinishReason | None = FinishReason.STOP, version: Version = INITIAL
) -> TokenChunk:
    array = np.array(list(tokens), dtype=np.int32)
    return TokenChunk(
        tokens=array,
        logprobs=np.full(len(array), -0.5, dtype=np.float32),
        versions=np.full(len(array), version.number, dtype=np.int32),
        branches=np.full(len(array), version.branch, dtype=np.int32),
        finish_reason=finish,
    )


def says(text: str) -> Script:
    """Writes `text` and the stop token."""
    return lambda request: chunk([*ids(text), EOS])


class ScriptedEngine:
    """Answers requests from a script, one entry a request; the last entry serves all that follow."""

    quiet = None
    rests = False
    asleep = ()

    def __init__(self, *script: Script, version: Version = INITIAL) -> None:
        self.version = version
        self.requests: list[GenerateRequest] = []
        self.aborted: list[str] = []
        self._script = script
        self.failure: Exception | None = None

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        answer = self._script[min(len(self.requests), len(self._script) - 1)](request)
        self.requests.append(request)
        await asyncio.sleep(0)
        if answer is None:
            await asyncio.get_running_loop().create_future()
        if isinstance(answer, Exception):
            raise answer
        yield answer

    def abort(self, request_ids: Iterable[str]) -> None:
        self.aborted.extend(request_ids)


def dead(request: GenerateRequest) -> EngineError:
    return EngineError("the engine died")


def hangs(request: GenerateRequest) -> None:
    return None


class Hurried(SystemClock):
    """Pauses are a fiftieth."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds / 50)


def settings(*engines: Any, chat: bool = False, **changes: Any) -> PolicySettings:
    values: dict[str, Any] = {
        "engines": EnginePool.of(engines, Hurried()),
        "text": TextCodec(char_tokenizer(chat=chat)),
        "sampling": SamplingParams(max_new_tokens=16, stop_token_ids=(EOS,)),
        "seed": 7,
        "clock": SystemClock(),
        "request_timeout_s": 5.0,
    }
    return PolicySettings(**{**values, **changes})


def policy(*engines: Any, min_version: Version = INITIAL, episode: int = 0, **changes: Any) -> Policy:
    return Policy(settings(*engines, **changes), group=GroupKey(0, 3, 0), episode=episode, min_version=min_version)


class PaperRewards:
    """1 for the row's answer, and what was asked."""

    def __init__(self, outcome: RewardOutcome | None = None) -> None:
        self.asked: list[str] = []
        self.conversations: list[Any] = []
        self.earlier: list[Any] = []
        self._outcome = outcome

    async def score(
        self,
        response: str,
        row: dict[str, Any],
        prompt: Any,
        messages: Any = None,
        ids: Any = None,
        earlier: Any = (),
    ) -> RewardOutcome:
        self.asked.append(response)
        self.earlier.append(earlier)
        self.conversations.append(messages)
        return self._outcome or RewardOutcome(float(response == row.get("answer")))
