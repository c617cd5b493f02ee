"""From the JSON of a request to what it asks of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config.values.temperature import HIGHEST_TEMPERATURE, TEMPERATURES, is_temperature
from headrace.engines.protocol import SamplingParams
from headrace.experience.text.messages import Message, as_messages
from headrace.experience.text.tokens import Content, TextCodec
from headrace.gateway.errors import ApiError
from headrace.gateway.fields import Fields
from headrace.gateway.template_variables import checked_variables

_MAX_CHOICES = 1024
_MAX_STOP_STRINGS = 16
_MAX_STOP_CHARACTERS = 256
_CHARACTERS_PER_TOKEN = 64
"""More than any text comes to on average."""
_COMPLETION_TOKENS = 16
"""OpenAI's default for `max_tokens` of a completion; of a chat it is what the context has room for."""
_IGNORED = ("metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
_INERT = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "min_p": 0,
    "logit_bias": {},
    "best_of": 1,
    "echo": False,
    "suffix": "",
    "tools": [],
    "tool_choice": "none",
    "parallel_tool_calls": True,
    "response_format": {"type": "text"},
}
"""Fields of the API that the engine has nothing for, with the value that asks for nothing."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What requests are checked against."""

    name: str
    max_context: int
    """Longest prompt + response in tokens."""
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    """The model's own end-of-sequence tokens."""

    def check_name(self, model: Any) -> None:
        """Raises ApiError unless it is this model's name, or none is given."""
        if model not in (None, self.name):
            raise ApiError(
                f"no model {model!r} here; ask for {self.name!r}", param="model", code="model_not_found", status=404
            )


@dataclass(frozen=True, slots=True)
class Job:
    """One HTTP request: `n` continuations of each prompt."""

    prompts: tuple[NDArray[np.int32], ...]
    sampling: SamplingParams
    n: int = 1
    stop: tuple[str, ...] = ()
    seed: int | None = None
    stream: bool = False
    include_usage: bool = False
    logprobs: bool = False
    return_kept: bool = False
    user: str | None = None
    """Whom the client asks for, if it says: those of one address share what the engine has among them."""

    @property
    def prompt_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.prompts)


def parse_completion(body: Any, limits: ModelLimits, text: TextCodec) -> Job:
    fields = _of_model(body, limits)
    prompts = tuple(_checked_prompt(prompt, limits) for prompt in _prompts(fields.get("prompt"), text, limits))
    if fields.integer("logprobs", 0, 0, 5) > 0:
        raise ApiError("logprobs above 0 are not supported: 0 gives those of the sampled tokens", param="logprobs")
    return _job(fields, limits, prompts, _COMPLETION_TOKENS, logprobs=_given(body, "logprobs"))


def parse_chat(body: Any, limits: ModelLimits, text: TextCodec) -> Job:
    fields = _of_model(body, limits)
    variables = checked_variables(fields.get("chat_template_kwargs"))
    prompt = _checked_prompt(_encode(_messages(fields.get("messages")), text, limits, variables), limits)
    if fields.integer("top_logprobs", 0, 0, 20) > 0:
        raise ApiError("top_logprobs above 0 are not supported: leave it out", param="top_logprobs")
    return _job(fields, limits, (prompt,), limits.max_context - len(prompt), logprobs=fields.flag("logprobs"))


def parse_generate(body: Any, limits: ModelLimits) -> Job:
    """Token ids: `{"prompt_ids", "sampling": {...}, "seed", "stream", "return_kept"}`."""
    fields = Fields(body)
    prompt = _checked_prompt(np.asarray(fields.integers("prompt_ids", limits.vocab_size - 1), np.int32), limits)
    inner = fields.get("sampling")
    sampling_fields = Fields({} if inner is None else inner, "sampling")
    room = limits.max_context - len(prompt)
    tokens = _fitting(sampling_fields.optional_integer("max_new_tokens", 1, 2**31 - 1), room, room, len(prompt))
    job = Job(
        prompts=(prompt,),
        sampling=_sampling(sampling_fields, limits, tokens),
        seed=_seed(fields),
        stream=fields.flag("stream"),
        return_kept=fields.flag("return_kept"),
    )
    sampling_fields.refuse_rest({}, ())
    fields.refuse_rest({}, ())
    return job


def _given(body: Any, name: str) -> bool:
    return isinstance(body, dict) and body.get(name) is not None


def _of_model(body: Any, limits: ModelLimits) -> Fields:
    fields = Fields(body)
    limits.check_name(fields.get("model"))
    return fields


def _job(
    fields: Fields, limits: ModelLimits, prompts: tuple[NDArray[np.int32], ...], default_tokens: int, *, logprobs: bool
) -> Job:
    longest = max(len(prompt) for prompt in prompts)
    old, new = (fields.optional_integer(name, 1, 2**31 - 1) for name in ("max_tokens", "max_completion_tokens"))
    room = limits.max_context - longest
    tokens = _fitting(new if new is not None else old, min(default_tokens, room), room, longest)
    stream = fields.flag("stream")
    options = fields.get("stream_options")
    job = Job(
        prompts=prompts,
        sampling=_sampling(fields, limits, tokens),
        n=fields.integer("n", 1, 1, _MAX_CHOICES),
        stop=_stop_strings(fields.get("stop")),
        seed=_seed(fields),
        stream=stream,
        include_usage=options is not None and Fields(options, "stream_options").flag("include_usage"),
        logprobs=logprobs,
        user=_user(fields.get("user")),
    )
    fields.refuse_rest(_INERT, _IGNORED)
    if job.n * len(prompts) > _MAX_CHOICES:
        raise ApiError(f"{len(prompts)} prompts x n {job.n} are more than {_MAX_CHOICES} choices: ask for fewer")
    return job


def _sampling(fields: Fields, limits: ModelLimits, max_new_tokens: int) -> SamplingParams:
    stops = fields.integers("stop_token_ids", limits.vocab_size - 1)
    own = () if fields.flag("ignore_eos") else limits.eos_token_ids
    usual = SamplingParams(max_new_tokens, stop_token_ids=tuple(dict.fromkeys((*own, *stops))))
    return drawn_by(fields, usual, limits.vocab_size)


def drawn_by(fields: Fields, usual: SamplingParams, largest_top_k: int) -> SamplingParams:
    """`usual` with the temperature, top_p and top_k that are given. Raises ApiError."""
    temperature = fields.number("temperature", usual.temperature, 0.0, HIGHEST_TEMPERATURE)
    if not is_temperature(temperature):
        raise ApiError(f"temperature is {temperature!r}; it must be {TEMPERATURES}", param="temperature")
    top_p = fields.number("top_p", usual.top_p, 0.0, 1.0)
    if top_p == 0:
        raise ApiError("top_p is 0; it must be above 0 (temperature 0 is greedy)", param="top_p")
    top_k = max(0, fields.integer("top_k", usual.top_k, -1, largest_top_k))  # -1: vLLM's word for no limit
    return replace(usual, temperature=temperature, top_p=top_p, top_k=top_k)


def _user(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _seed(fields: Fields) -> int | None:
    return fields.optional_integer("seed", -(2**63), 2**63 - 1)


def _fitting(asked: int | None, default: int, room: int, prompt_tokens: int) -> int:
    if asked is not None and asked > room:
        raise ApiError(
            f"{asked} new tokens after {prompt_tokens} of the prompt are more than the context of "
            f"{prompt_tokens + room}; ask for {room} or fewer",
            param="max_tokens",
            code="context_length_exceeded",
        )
    return default if asked is None else asked


def _stop_strings(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ApiError("stop must be text, or a list of texts", param="stop")
    if len(stops) > _MAX_STOP_STRINGS or any(not 1 <= len(stop) <= _MAX_STOP_CHARACTERS for stop in stops):
        raise ApiError(
            f"stop takes up to {_MAX_STOP_STRINGS} texts of 1 to {_MAX_STOP_CHARACTERS} characters", param="stop"
        )
    return tuple(stops)


def _prompts(value: Any, text: TextCodec, limits: ModelLimits) -> list[NDArray[np.int32]]:
    match value:
        case str():
            return [_encode(value, text, limits)]
        case [int(), *_]:
            return [_ids(value)]
        case [_, *_] if len(value) <= _MAX_CHOICES:
            return [_encode(item, text, limits) if isinstance(item, str) else _ids(item) for item in value]
    raise ApiError(
        f"prompt must be text, token ids, or a list of 1 to {_MAX_CHOICES} texts or lists of token ids", param="prompt"
    )


def _ids(value: Any) -> NDArray[np.int32]:
    return np.asarray(Fields({"prompt": value}).integers("prompt", 2**31 - 1), np.int32)


def _encode(
    content: Content, text: TextCodec, limits: ModelLimits, variables: Mapping[str, Any] | None = None
) -> NDArray[np.int32]:
    texts = [content] if isinstance(content, str) else [text for message in content for text in message.values()]
    size = sum(len(text if isinstance(text, str) else repr(text)) for text in texts)
    if size > _CHARACTERS_PER_TOKEN * limits.max_context:
        raise ApiError(
            f"the prompt has {size} characters, far more than the context of {limits.max_context} tokens; shorten it",
            code="context_length_exceeded",
        )
    try:
        return text.encode(content, variables=variables)
    except (ValueError, TypeError) as error:  # what tokenizers raise
        raise ApiError(str(error)) from error


def _checked_prompt(prompt: NDArray[np.int32], limits: ModelLimits) -> NDArray[np.int32]:
    if len(prompt) == 0:
        raise ApiError("the prompt has no tokens; give at least one")
    if len(prompt) >= limits.max_context:
        raise ApiError(
            f"the prompt has {len(prompt)} tokens, and the context of {limits.max_context} must also hold a response; "
            "shorten it",
            code="context_length_exceeded",
        )
    if prompt.max() >= limits.vocab_size:
        raise ApiError(f"token id {prompt.max()} is outside the vocabulary of {limits.vocab_size}")
    return prompt


def _messages(value: Any) -> list[Message]:
    """Text only; see `experience.text.messages`."""
    if not isinstance(value, list) or not value:
        raise ApiError("messages must be a list of at least one message", param="messages")
    try:
        return as_messages(value)
    except ValueError as error:
        raise ApiError(str(error), param="messages") from error
