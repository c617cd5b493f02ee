"""The reward `judge`: a language model is asked about a response, and says a number.

The response, and what the judge says of it, are untrusted: the response is put into the question as plain text, where
it can neither name another placeholder nor write a control token of the judge's chat.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import regex
from numpy.typing import NDArray

from headrace.config.reward import PLACEHOLDER, JudgeConfig
from headrace.engines.completions import Asked, GenerationAborted, complete
from headrace.engines.pool import EnginePool
from headrace.engines.protocol import EngineError, RequestError, SamplingParams
from headrace.experience.failures import FailureKind, describe
from headrace.experience.text.tokens import Content, TextCodec
from headrace.rewards.outcome import FailedReward, NotARewardError, Verdict, as_reward
from headrace.runtime.off_loop import off_loop, tokens_in
from headrace.runtime.patience import Patience, StandStill
from headrace.runtime.protocol import Clock, Services, WaitTimeout

_PATTERN_TIMEOUT_S = 0.5
"""A pattern can take exponential time, and it is looked for in the event loop."""

Ask = Callable[[JudgeConfig, Mapping[str, str], StandStill], Awaitable[str]]
"""The answer of a judge to its question about these texts, by placeholder; the clock of the last stands still while no
engine may give it. Raises EngineError, RequestError,
GenerationAborted, or ValueError for a question that cannot be encoded."""


class JudgeReward:
    """One judge of the config. Whatever goes wrong fails the sample, with a reason."""

    def __init__(self, config: JudgeConfig, ask: Ask | None, clock: Clock) -> None:
        self._config = config
        self._ask = ask
        self._clock = clock

    async def judge(self, arguments: list[Any]) -> Verdict:
        """The verdict on [response, row, prompt, messages]."""
        response, row, prompt, *_ = arguments
        if self._ask is None:
            return None, describe(FailureKind.REWARD_JUDGE, "no engine runs here that could be asked")
        try:
            patience = Patience(self._clock, self._config.timeout_s)
            asked = self._ask(self._config, texts(self._config, response, row, prompt), patience.still)
            answer = await patience.wait_for(asked, "the judge's answer")
            return number(self._config, answer), None
        except WaitTimeout as late:
            return None, describe(FailureKind.REWARD_TIMEOUT, str(late))
        except FailedReward as error:
            return None, describe(error.kind, str(error))
        except (EngineError, RequestError, GenerationAborted, ValueError) as error:
            return None, describe(FailureKind.REWARD_JUDGE, str(error))


def texts(config: JudgeConfig, response: str, row: Mapping[str, Any], prompt: Content) -> dict[str, str]:
    """What the placeholders of the question stand for. Raises FailedReward if the row lacks a column."""
    missing = [name for name in config.columns if row.get(name) is None]
    if missing:
        raise FailedReward(FailureKind.REWARD_JUDGE, f"the row has no value in column {missing[0]!r}")
    return {
        **{name: _text(row[name]) for name in config.columns},
        "prompt": _conversation(prompt),
        "response": response,
    }


def fill(template: str, values: Mapping[str, str]) -> str:
    """`template` with `{name}` replaced by the text of that name. What is put in is not looked at again."""
    return PLACEHOLDER.sub(lambda found: values[found[1]], template)


def defused(text: str, control_tokens: Sequence[str]) -> str:
    """`text` with a space in every control token that is written out in it, so that it is encoded as plain text."""
    for token in control_tokens:
        text = text.replace(token, f"{token[0]} {token[1:]}")
    return text


def number(config: JudgeConfig, answer: str) -> float:
    """The reward that an answer means. Raises FailedReward if it has no number, or one beyond `low` and `high`."""
    try:
        numbers: list[str] = regex.findall(config.pattern, answer, timeout=_PATTERN_TIMEOUT_S)
    except TimeoutError as late:
        what = f"judge.pattern took more than {_PATTERN_TIMEOUT_S:g} s on what it said; write one that backtracks less"
        raise FailedReward(FailureKind.REWARD_JUDGE, what) from late
    if not numbers or not numbers[-1]:
        raise FailedReward(FailureKind.REWARD_JUDGE, f"no number in what it said: {answer[-120:]!r}")
    try:
        value = as_reward(float(numbers[-1]))
    except NotARewardError as error:
        raise FailedReward(FailureKind.REWARD_NAN, f"the judge {error}") from error
    except ValueError as error:
        raise FailedReward(FailureKind.REWARD_JUDGE, f"{numbers[-1][:120]!r} is no number") from error
    low, high = config.low, config.high
    if low is None or high is None:
        return value
    if not low <= value <= high:
        raise FailedReward(FailureKind.REWARD_JUDGE, f"said {value:g}, which is not between {low:g} and {high:g}")
    return (value - low) / (high - low)


class JudgeModel:
    """A language model that answers, on any engine that serves it."""

    def __init__(
        self,
        engines: EnginePool,
        tokenizer: Any,
        *,
        stop_token_ids: tuple[int, ...],
        max_context: int,
        seed: int,
        services: Services | None = None,
        asker: str = "",
    ) -> None:
        """`tokenizer`: a Hugging Face one; with a chat template, questions are asked as a user's message. `services`:
        for long questions and answers; without, they are read in the event loop. `asker`: who else asks these engines
        has another name."""
        self._engines = engines
        self._text = TextCodec(tokenizer)
        self._is_chat = bool(tokenizer.chat_template)
        self._control_tokens = _control_tokens(tokenizer)
        self._stops = stop_token_ids
        self._max_context = max_context
        self._seed = seed
        self._services = services
        self._name = f"judge/{asker}/" if asker else "judge/"
        self._asked = count()

    async def answer(self, config: JudgeConfig, values: Mapping[str, str], still: StandStill) -> str:
        """See `Ask`. The same question gets the same noise, whenever it is asked."""
        length = len(config.prompt or "") + sum(map(len, values.values()))
        tokens = await off_loop(self._services, tokens_in(length), self._question, config, values)
        room = self._max_context - len(tokens)
        if room < 1:
            raise RequestError(
                f"the question has {len(tokens)} tokens, and the judge's context holds {self._max_context}"
            )
        key = hashlib.blake2b(tokens.tobytes(), digest_size=8, key=self._seed.to_bytes(8, "little")).digest()
        sampling = SamplingParams(
            min(config.max_new_tokens, room), temperature=config.temperature, stop_token_ids=self._stops
        )
        name = f"{self._name}{next(self._asked)}"
        key_of = int.from_bytes(key, "little")
        asked = Asked(name, tokens, sampling, key_of, still=(still,))
        completion = await complete(self._engines, asked, services=self._services)
        return await off_loop(self._services, len(completion.tokens), self._text.decode, completion.tokens)

    def _question(self, config: JudgeConfig, values: Mapping[str, str]) -> NDArray[np.int32]:
        question = fill(
            config.prompt or "", {name: defused(text, self._control_tokens) for name, text in values.items()}
        )
        return self._text.encode([{"role": "user", "content": question}] if self._is_chat else question)


def _control_tokens(tokenizer: Any) -> tuple[str, ...]:
    """Texts that the tokenizer takes for one special token, the longest first."""
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    return tuple(sorted(special | set(tokenizer.all_special_tokens), key=lambda text: (-len(text), text)))


def _conversation(prompt: Content) -> str:
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1:
        return prompt[0]["content"]
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in prompt)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
