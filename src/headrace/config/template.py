"""What the config adds to a model's chat template."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue

from headrace.config.base import Section

_ARGUMENTS = (
    "conversation",
    "messages",
    "tools",
    "documents",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "tokenize",
    "sanitize_control_tokens",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
)
"""Of `apply_chat_template` itself: Headrace gives them."""


def check_variables(kwargs: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """`kwargs`, if all are names for a chat template. Raises ValueError."""
    for name in kwargs:
        if name in _ARGUMENTS:
            raise ValueError(f"{name} is given by Headrace itself; leave it out (tools come from data.tools_column)")
        if not name.isidentifier():
            raise ValueError(f"{name!r} is no name of a variable")
    return kwargs


class TemplateConfig(Section):
    kwargs: Annotated[dict[str, JsonValue], AfterValidator(check_variables)] = Field(default={})
    """Variables of the chat template, as `{enable_thinking: false}`; `headrace check` names one that the template does
    not read."""
    system: str | None = Field(default=None, min_length=1)
    """A system message for every conversation that has none."""
    file: str | None = None
    """A Jinja file instead of the tokenizer's own chat template; models that are exported have it too."""
