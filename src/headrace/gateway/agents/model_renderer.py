"""Chats of a model that the package `renderers` knows: rendered, gone on from and read by it.

The package is imported once a renderer is wanted; it imports neither torch nor transformers then.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config import ConfigError, TrainConfig
from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.messages import Message, Tool
from headrace.gateway.agents.parsed_text import ParsedText, ToolCall
from headrace.gateway.agents.plain_json import check_plain

logger = logging.getLogger(__name__)

TEMPLATE = "template"
"""The value of `gateway.renderer` for none: the chat template renders."""
_TELL_TOOLS = ("gemma4", "gpt-oss", "inkling")
"""Renderers that show which tool a result is of, which agents do not say."""
_CHANNELS = ("gemma4", "gpt-oss", "inkling")
"""Renderers of models that say in which channel they speak, so that later words tell what earlier ones were."""
_PROMPT_END = 256
"""Tokens of a prompt, in which it may begin a thought for the policy."""
_VARIANTS = 16
"""Renderers that are kept, by the template's variables that requests give."""


class UnreadAnswer(ValueError):
    """The package raised something where it read an answer."""


class _NoCall(ValueError):
    """What the policy wrote is no call."""


@dataclass(frozen=True, slots=True)
class AnswerReader:
    """How `renderer` reads the answers to one prompt."""

    renderer: ModelRenderer
    prompt: NDArray[np.int32]
    closing: Collection[int]
    tools: Sequence[Tool] | None
    variables: Mapping[str, Any]

    @property
    def marks(self) -> Mapping[int, str]:
        """See `ModelRenderer.marks`."""
        return self.renderer.marks

    @property
    def has_channels(self) -> bool:
        """Whether what comes later may tell that nothing of what came before is said."""
        return self.renderer.name in _CHANNELS

    def read(self, answer: NDArray[np.int32]) -> ParsedText | None:
        """See `ModelRenderer.read`. Raises UnreadAnswer."""
        return self.renderer.read(self.prompt, answer, self.closing, self.tools, self.variables)


class ModelRenderer:
    """One renderer of the package over the run's tokenizer."""

    def __init__(self, wanted: str, model: str, template: ChatTemplate) -> None:
        """`wanted`: a renderer, or a model on the Hub whose renderer it is. `model`: the name or path of the one at
        hand. `template`: for its tokenizer, and what the config adds. Raises ConfigError."""
        if not is_installed():
            raise ConfigError(
                f"gateway.renderer is {wanted!r}, and the package renderers is not installed: pip install "
                f"'headrace[renderers]', or set it to {TEMPLATE}"
            )
        known = known_models()
        self.name = known.get(wanted, wanted)
        if self.name not in known.values():
            raise ConfigError(
                f"gateway.renderer is {wanted!r}, and {package()} knows no such model or renderer; its renderers are "
                f"{', '.join(sorted(set(known.values())))}; or set it to {TEMPLATE}"
            )
        self._template = template
        # Sizes of a family may differ, and some renderers tell them by the model's name.
        self._tokenizer = _Tokenizer(template.tokenizer, wanted if wanted in known else model)
        self._with = lru_cache(_VARIANTS)(self._made)
        self._told: set[type[Exception]] = set()
        try:
            self._of({})
        except ValueError as error:
            raise ConfigError(
                f"gateway.renderer is {wanted!r}, which cannot render for {model}: {error}; set it to {TEMPLATE}"
            ) from error

    @staticmethod
    def of(config: TrainConfig, template: ChatTemplate) -> ModelRenderer | None:
        """As `gateway.renderer` wants; None where the chat template renders. Raises ConfigError."""
        wanted = resolved(config)
        return None if wanted == TEMPLATE else ModelRenderer(wanted, config.model.path, template)

    def whole(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None, variables: Mapping[str, Any]
    ) -> NDArray[np.int32]:
        """Ids of `messages`, up to where the policy's turn begins. `variables` go before those of the config. Raises
        ValueError."""
        renderer, given = self._of(variables), self._given(self._template.with_system(messages))
        with _in_words(self.name):
            return np.asarray(renderer.render_ids(given, tools=_list(tools), add_generation_prompt=True), np.int32)

    def after(
        self,
        prompt: NDArray[np.int32],
        answer: NDArray[np.int32],
        messages: Sequence[Message],
        place: int,
        tools: Sequence[Tool] | None,
        variables: Mapping[str, Any],
    ) -> NDArray[np.int32] | None:
        """Ids of what comes after the `answer` to `prompt`, which is `messages[place]`, up to the policy's next turn.
        None where the package does not go on from it: one of the new messages is an assistant's, or these ids cannot
        all stay. Raises ValueError."""
        renderer, added = self._of(variables), self._given(messages)[place + 1 :]
        asked, said = prompt.tolist(), answer.tolist()
        with _in_words(self.name):
            bridged = renderer.bridge_to_next_turn(asked, said, added, tools=_list(tools))
        before = asked + said
        if bridged is None or bridged.token_ids[: len(before)] != before:
            return None
        return np.asarray(bridged.token_ids[len(before) :], np.int32)

    def read(
        self,
        prompt: NDArray[np.int32],
        answer: NDArray[np.int32],
        closing: Collection[int],
        tools: Sequence[Tool] | None,
        variables: Mapping[str, Any],
    ) -> ParsedText | None:
        """What the policy said, without the token of `closing` that ends it; None where it wrote a call that is none,
        so that all of it is text. Raises UnreadAnswer."""
        renderer, said = self._of(variables), answer.tolist()
        if said and said[-1] in closing and said[-1] not in renderer.get_stop_token_ids():
            said.pop()
        if self.name == "llama-3":  # which has an answer begin behind the last of these, wherever it is
            said = [token for token in said if self.marks.get(token) != "<|end_header_id|>"]
        try:
            found = renderer.parse_response(said, tools=_list(tools), prompt_ids=prompt[-_PROMPT_END:].tolist())
            thought = found.reasoning_content  # of one that was not ended, and for some models, with spaces around it
            calls = tuple(map(_call_of, found.tool_calls))
            return ParsedText(found.content.strip(), calls, None if thought is None else thought.strip())
        except _NoCall:
            return None
        except Exception as error:  # of what the policy wrote, or of the package: it does not say which
            self._tell(error)
            raise UnreadAnswer(f"the renderer {self.name} raised {type(error).__name__}") from error

    def _tell(self, error: Exception) -> None:
        """In the log, the first of its type."""
        if type(error) not in self._told:
            self._told.add(type(error))
            logger.warning(
                "the renderer %s of %s raised %s where it read an answer, which is taken for text; what the policy "
                "wrote may be the cause, but where unread_answers in the samples' metadata grows on, the package is: "
                "set gateway.renderer to %s, or install another version of it",
                self.name,
                package(),
                type(error).__name__,
                TEMPLATE,
                exc_info=error,
            )

    @cached_property
    def marks(self) -> dict[int, str]:
        """Tokens beside the vocabulary, by id: what may mean more than it says."""
        added = self._template.tokenizer.added_tokens_decoder
        return {token: mark for token, each in added.items() if (mark := each.content).strip()}

    def _of(self, variables: Mapping[str, Any]) -> Any:
        """The package's renderer under these variables. Raises ValueError."""
        return self._with(json.dumps({**self._template.kwargs, **variables}, sort_keys=True))

    def _made(self, variables: str) -> Any:
        from renderers import config_from_name, create_renderer

        kind, given = type(config_from_name(self.name)), json.loads(variables)
        with _in_words(self.name):
            try:
                # Which answers are gone on from, the session decides by `gateway.thinking`.
                return create_renderer(self._tokenizer, kind(thinking_retention="all"), chat_template_kwargs=given)
            except ValueError:  # a variable says what becomes of thoughts
                return create_renderer(self._tokenizer, kind(), chat_template_kwargs=given)

    def _given(self, messages: Sequence[Message]) -> list[Message]:
        """`messages` as the renderer wants them."""
        if self.name not in _TELL_TOOLS:
            return list(messages)
        calls = [call for message in messages for call in message.get("tool_calls", ())]
        names = {call["id"]: call["function"]["name"] for call in calls if "id" in call}
        return [
            {"name": names[message["tool_call_id"]], **message} if message.get("tool_call_id") in names else message
            for message in messages
        ]


class _Tokenizer:
    """What the package asks of a tokenizer, by ours. It has no offsets of characters, which no id depends on."""

    def __init__(self, tokenizer: Any, name: str) -> None:
        self.name_or_path = name
        self.chat_template = tokenizer.chat_template
        self.eos_token_id = tokenizer.eos_token_id
        self.unk_token_id = getattr(tokenizer, "unk_token_id", None)
        self._tokenizer = tokenizer

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"])

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **_: Any) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens))

    def convert_tokens_to_ids(self, token: str) -> int | None:
        found: int | None = self._tokenizer.convert_tokens_to_ids(token)
        return found


def is_installed() -> bool:
    return find_spec("renderers") is not None


def package() -> str:
    """Its name and version."""
    return f"renderers {version('renderers')}"


def known_models() -> dict[str, str]:
    """The renderer of each model on the Hub that the package knows."""
    from renderers.base import MODEL_RENDERER_MAP

    return dict(MODEL_RENDERER_MAP)


def resolved(config: TrainConfig) -> str:
    """`gateway.renderer`; if that is `auto`, the model where the package knows it and its chat template is its own."""
    wanted, model = config.gateway.renderer, config.model.path
    if wanted != "auto":
        return wanted
    is_of_the_hub = config.data.template.file is None and not Path(model).exists()
    return model if is_of_the_hub and is_installed() and model in known_models() else TEMPLATE


@contextmanager
def _in_words(name: str) -> Iterator[None]:
    """What a renderer raises, as a ValueError with its name."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"the renderer {name} refuses it ({type(error).__name__}: {error})") from error


def _call_of(found: Any) -> ToolCall:
    """Raises _NoCall unless it is one."""
    name, arguments, own_id = found.name, found.arguments, found.id
    # Formats that are no JSON take a value that is none for text, and say so.
    is_whole = found.status in ("ok", "invalid_json")
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        check_plain([name, arguments, own_id])
    except (ValueError, TypeError, RecursionError) as error:
        raise _NoCall(str(error)) from error
    if not is_whole or not name or not isinstance(arguments, dict):
        raise _NoCall("a call has a name, and an object of arguments")
    return ToolCall(name, arguments, own_id)


def _list(tools: Sequence[Tool] | None) -> list[Tool] | None:
    return None if tools is None else list(tools)
