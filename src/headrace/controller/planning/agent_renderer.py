"""What renders the chats of an agent, settled before the start."""

from __future__ import annotations

from headrace.config import ConfigError, TrainConfig
from headrace.experience.text.append_only import ASKED, PROBES, TOOL
from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.messages import Message, Tool
from headrace.experience.text.tokens import TextCodec
from headrace.gateway.agents.model_renderer import TEMPLATE, ModelRenderer, package, resolved

_CHATS: dict[str, tuple[list[Message], list[Tool] | None]] = {
    "a user's first message": ([ASKED], None),
    "a system message": ([{"role": "system", "content": "five"}, ASKED], None),
    "tools": ([ASKED], [TOOL]),
    **{what: (messages, None) for what, messages in PROBES.items()},
}


def settle_renderer(config: TrainConfig, template: ChatTemplate) -> tuple[TrainConfig, list[str]]:
    """`config` of an agent, with what `gateway.renderer: auto` comes to; and notes, a line each. Raises ConfigError for
    a renderer that cannot be had."""
    wanted, notes = resolved(config), []
    if wanted != TEMPLATE:
        try:
            renderer = ModelRenderer(wanted, config.model.path, template)
        except ConfigError as error:
            if config.gateway.renderer != "auto":
                raise
            wanted, notes = TEMPLATE, [f"chats are rendered by the chat template: {error}"]
        else:
            notes = _notes(renderer, template)
    gateway = config.gateway.model_copy(update={"renderer": wanted})
    return config.model_copy(update={"gateway": gateway}), notes


def _notes(renderer: ModelRenderer, template: ChatTemplate) -> list[str]:
    who = f"{package()}: {renderer.name}"
    if not template.exists:
        return [f"the tokenizer has no chat template, so that what renders chats ({who}) is compared with nothing"]
    if not (found := differences(renderer, TextCodec(template.tokenizer, template))):
        return []
    return [
        f"what renders chats ({who}) renders {_listed(found)} otherwise than the chat template does: the policy is "
        "trained on the former, and whoever serves it by the template asks it otherwise; gateway.renderer: template "
        "trains on the template"
    ]


def differences(renderer: ModelRenderer, text: TextCodec) -> list[str]:
    """Which chats `renderer` renders otherwise than the template, in words; those that the template refuses aside."""
    return [what for what, (messages, tools) in _CHATS.items() if _differs(renderer, text, messages, tools)]


def _differs(renderer: ModelRenderer, text: TextCodec, messages: list[Message], tools: list[Tool] | None) -> bool:
    try:
        by_template = text.encode(messages, tools)
    except ValueError:
        return False
    try:
        return by_template.tolist() != renderer.whole(messages, tools, {}).tolist()
    except ValueError:
        return True


def _listed(names: list[str]) -> str:
    """As `a, b and c`."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
