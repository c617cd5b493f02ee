"""Chat templates rendered as transformers renders them, without it: by Jinja, in its sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Names that a message's reasoning has; the first is the one that templates read."""

_EXACT = frozenset({str, int, float, bool, type(None)})
_JSON = json.JSONEncoder(ensure_ascii=False)
_OF_DICTS = frozenset(dir(dict))


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    variables: Mapping[str, Any],
    *,
    add_generation_prompt: bool,
) -> str:
    """The text of `messages`, which hold JSON-like values. Raises what Jinja and the template raise."""
    chat = [{name: value for name, value in message.items() if value is not None} for message in messages]
    if not chat:
        raise ValueError("Cannot apply chat template to an empty conversation. Provide at least one message.")
    return _compiled(template).render(
        messages=[_with_reasoning(_plain(message)) for message in chat],
        tools=None if tools is None else [_plain(tool) for tool in tools],
        documents=None,
        add_generation_prompt=add_generation_prompt,
        **{name: _plain(value) for name, value in variables.items()},
    )


def chosen_template(template: str | Mapping[str, str] | None, tools: object | None) -> str:
    """Of several templates the one for `tools`, or the default. Raises ValueError."""
    if isinstance(template, Mapping):
        if tools is not None and "tool_use" in template:
            return template["tool_use"]
        if "default" in template:
            return template["default"]
        raise ValueError(f"the tokenizer has the chat templates {', '.join(sorted(template))}, and no default one")
    if template is None:
        raise ValueError("the tokenizer has no chat template")
    return template


class GenerationBlock(Extension):
    """Hugging Face's tag around what the assistant wrote: it leaves no trace in the text, and has a scope of its own,
    which the caller of a macro has too."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> Any:
        return caller()


class _Dict:
    """What templates call `dict`: no attributes of the class can be reached through it."""

    def __call__(self, *args: Any, **more: Any) -> dict[Any, Any]:
        return dict(*args, **more)

    def fromkeys(self, *args: Any, **more: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **more)


class _Namespace(Namespace):
    """Takes no names that begin with an underscore."""

    def __init__(*args: Any, **more: Any) -> None:
        own, given = args[0], dict(*args[1:], **more)
        for name in given:
            _check_name(name)
        Namespace.__init__(own, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a chat template may not set {name!r} in a namespace; rename it")


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    if indent is None and separators is None and not (ensure_ascii or sort_keys):
        return _JSON.encode(value)  # `dumps` makes an encoder each time
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class _Environment(ImmutableSandboxedEnvironment):
    """That of transformers, sooner at what templates do most: `message.role`."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        """An entry of a dict; what a dict has as an attribute goes before."""
        if type(obj) is dict and attribute in obj and attribute not in _OF_DICTS:
            return obj[attribute]
        return super().getattr(obj, attribute)


@lru_cache(maxsize=16)
def _compiled(source: str) -> jinja2.Template:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, dict=_Dict(), namespace=_Namespace
    )
    return environment.from_string(source)


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    found = next((message[name] for name in _REASONING_FIELDS if message.get(name) is not None), None)
    return message if found is None else {"thinking": found, **message, "reasoning_content": found}


def _plain(value: Any) -> Any:
    """`value` of exact JSON types, so that a template finds no methods but theirs."""
    kind = type(value)
    if kind in _EXACT:
        return value
    if kind is dict:
        return {
            name if type(name) is str else _plain(name): entry if type(entry) in _EXACT else _plain(entry)
            for name, entry in value.items()
        }
    match value:
        case str():
            return str.__str__(value)
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
        case Mapping():
            return {_plain(name): _plain(entry) for name, entry in value.items()}
        case list():
            return [_plain(entry) for entry in value]
        case tuple():
            return tuple(_plain(entry) for entry in value)
    item = getattr(value, "item", None)
    if callable(item) and not getattr(value, "shape", None):  # a scalar of numpy's
        return _plain(item())
    return f"<{type(value).__name__}>"
