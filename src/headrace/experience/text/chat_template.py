"""How a conversation becomes one text: the tokenizer's chat template, or a file, and what the config adds to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headrace.config import ConfigError
from headrace.config.template import TemplateConfig
from headrace.config.values.paths import path_of
from headrace.experience.text.messages import Message, Tool, with_text_arguments

_SYSTEM_ROLES = ("system", "developer")


@dataclass(frozen=True)
class ChatTemplate:
    """Renders messages with the template that `tokenizer` has."""

    tokenizer: Any
    """A Hugging Face tokenizer."""
    kwargs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Variables of the template, as `enable_thinking`."""
    system: str | None = None
    """Put before a conversation that has no system message."""

    @staticmethod
    def of(config: TemplateConfig, tokenizer: Any) -> ChatTemplate:
        """As `config` says. A template of a file becomes the tokenizer's own, and so part of every model that is
        exported with it. Raises ConfigError for a file that cannot be read or parsed."""
        if config.file is not None:
            tokenizer.chat_template = _read(config.file)
        return ChatTemplate(tokenizer, config.kwargs, config.system)

    @property
    def exists(self) -> bool:
        return bool(self.tokenizer.chat_template)

    @property
    def marks_assistant(self) -> bool:
        """Whether it tells what the assistant wrote, by `{% generation %}`."""
        return any(_parse(source).generation for source in self._sources())

    def given(self, variables: Mapping[str, Any]) -> ChatTemplate:
        """The same, with `variables` before those of the config."""
        return replace(self, kwargs={**self.kwargs, **variables}) if variables else self

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None, *, asks: bool = True) -> str:
        """The text of `messages`; if it `asks`, up to where the policy's turn begins.

        Raises ValueError if there is no template, or it refuses them.
        """
        self._check()
        given: dict[str, Any] = {} if tools is None else {"tools": list(tools)}

        def render(messages: Sequence[Message]) -> str:
            whole = self.with_system(messages)
            return cast(
                str,
                self.tokenizer.apply_chat_template(
                    whole, tokenize=False, add_generation_prompt=asks, **given, **self.kwargs
                ),
            )

        with _in_words():
            try:
                return render(messages)
            except TypeError:  # as of DeepSeek's, which put the arguments of a call together with text
                if not any("tool_calls" in message for message in messages):
                    raise
                return render(with_text_arguments(messages))

    def render_marked(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None
    ) -> tuple[str, list[tuple[int, int]]]:
        """The text of `messages`, and the spans of characters that the template's `{% generation %}` marks. Raises
        ValueError."""
        from transformers.utils import chat_template_utils

        render: Any = chat_template_utils.render_jinja_template
        self._check()
        with _in_words():
            rendered, spans = render(
                [self.with_system(messages)],
                tools=None if tools is None else list(tools),
                chat_template=self.tokenizer.get_chat_template(tools=tools),
                return_assistant_tokens_mask=True,
                **{**self.tokenizer.special_tokens_map, **self.kwargs},
            )
        return rendered[0], [(begin, end) for begin, end in spans[0] if end > begin]

    def with_system(self, messages: Sequence[Message]) -> list[Message]:
        """`messages`, with the system message of the config if they have none."""
        if self.system is None or (messages and messages[0]["role"] in _SYSTEM_ROLES):
            return list(messages)
        return [{"role": "system", "content": self.system}, *messages]

    def reads(self, name: str) -> bool:
        """Whether any part of the template reads the variable `name`. Raises ConfigError if it does not parse."""
        return any(name in _parse(source).names for source in self._sources())

    def unread(self) -> list[str]:
        """The names of `kwargs` that the template does not read. Raises ConfigError if it does not parse."""
        return [name for name in self.kwargs if not self.reads(name)]

    def _sources(self) -> list[str]:
        template = self.tokenizer.chat_template
        return list(template.values()) if isinstance(template, Mapping) else [template] if template else []

    def _check(self) -> None:
        if not self.exists:
            raise ValueError(
                "the prompt is a list of chat messages, but the model's tokenizer has no chat template; "
                "give prompts as text, a template (data.template.file), or use a tokenizer with a chat_template"
            )


@contextmanager
def _in_words() -> Iterator[None]:
    """What a template raises, as a ValueError with the mend."""
    try:
        yield
    except (jinja2.TemplateError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        raise ValueError(
            f"the tokenizer's chat template refuses the messages: {type(error).__name__}: {error}; give messages "
            "that it takes (as to roles and their order), or mend the template (data.template.file)"
        ) from error


@dataclass(frozen=True, slots=True)
class _Parsed:
    names: frozenset[str]
    """Of variables that are read."""
    generation: bool
    """Whether there is a `{% generation %}` block."""


class _Generation(Extension):
    """Hugging Face's tag around what the assistant wrote. Here it is parsed alone; transformers renders it."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _parse(source: str, where: str = "the tokenizer's chat template") -> _Parsed:
    environment = ImmutableSandboxedEnvironment(
        extensions=[_Generation, loopcontrols], trim_blocks=True, lstrip_blocks=True
    )
    try:
        tree = environment.parse(source)
    except (jinja2.TemplateError, RecursionError) as error:
        raise ConfigError(f"{where} is no Jinja template ({error}); correct it") from error
    names = frozenset(node.name for node in tree.find_all(nodes.Name) if node.ctx == "load")
    return _Parsed(names, any(True for _ in tree.find_all(nodes.Scope)))


def _read(path: str) -> str:
    try:
        source = path_of(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"data.template.file is {path!r}, which cannot be read: {reason}; give a Jinja file, relative to the "
            "working directory"
        ) from error
    _parse(source, f"data.template.file {path!r}")
    return source
