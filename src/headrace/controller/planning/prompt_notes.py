"""What is told of prompts and the chat template before the start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.config import ConfigError, TrainConfig
from headrace.config.data import DataConfig
from headrace.config.evaluation import PLAIN
from headrace.config.template import TemplateConfig
from headrace.experience.prompts.dataset import Prompt, PromptDataset
from headrace.experience.text.append_only import moving, rewriting
from headrace.experience.text.chat_template import ChatTemplate
from headrace.experience.text.tokens import TextCodec

if TYPE_CHECKING:
    from headrace.controller.planning.context_room import Fit
    from headrace.controller.planning.plan import Plan

_FIRST, _LAST = 1500, 500
"""Characters that are shown of a long prompt."""


def check_template(config: TrainConfig, text: TextCodec, prompts: Sequence[PromptDataset]) -> None:
    """Raises ConfigError if the template has no place for the tools of a prompt, or refuses what an environment is to
    say; and if a column of tools is named that no prompt has."""
    with_tools = _first(each.first_with_tools() for each in prompts)
    column = config.data.tools_column
    if with_tools is None and column not in (None, DataConfig.model_fields["tools_column"].default):
        raise ConfigError(
            f"data.tools_column is {column!r}, and no prompt has tools there, so the policy would know of none; name "
            "the column that has them, or leave it out"
        )
    if with_tools is not None and text.template.exists and not text.template.reads("tools"):
        raise ConfigError(
            f"prompt {with_tools.prompt_id!r} has tools (column {config.data.tools_column!r}), and the chat template "
            f"of {config.data.template.file or config.model.path} shows none, so the policy would not know them; "
            "give one that does (data.template.file), or set data.tools_column to null"
        )
    chat = _first(each.first_chat() for each in prompts)
    if config.rollout.workflow == "multi_turn" and chat is not None and text.template.exists:
        role = config.rollout.observation_role
        try:
            text.encode_observation("-", chat=True, role=role, tools=chat.tools)
        except ValueError as error:
            raise ConfigError(
                f"what an environment says could not be a message of rollout.observation_role ({role!r}): {error}"
            ) from error


def _agent_notes(config: TrainConfig, template: ChatTemplate) -> Iterator[str]:
    if not template.exists:
        if config.gateway.renderer == "template":
            yield (
                "the tokenizer has no chat template, so that rollout.agent can only ask for completions; for chats set "
                "data.template.file"
            )
        return
    yield from unread_notes(template)
    if rewritten := rewriting(template):
        follows = "they stay as they were sampled"
        if config.gateway.thinking == "template":
            follows = "they stay as they were sampled, but where a thought is left out the history branches"
        yield (
            f"the chat template is not append-only: it renders answers otherwise once {' or '.join(rewritten)} "
            f"follows; {follows} (gateway.thinking: {config.gateway.thinking})"
        )
    if moved := moving(template):
        yield (
            f"the chat template is not append-only: it renders {' and '.join(moved)} otherwise once more turns follow; "
            "a history stays as it was read, and gets what the template then puts behind its last answer, which the "
            "policy may have read before: a server that renders the whole conversation asks otherwise"
        )


def template_notes(config: TrainConfig, template: ChatTemplate, prompts: Sequence[PromptDataset]) -> Iterator[str]:
    """Keys of `data.template` that change nothing; what a template does to the history of an agent."""
    if config.rollout.agent is not None:
        yield from _agent_notes(config, template)
        return
    if config.data.template == TemplateConfig():
        return
    if all(each.first_chat() is None for each in prompts):
        yield "data.template has no effect on prompts, which are text: only chat messages are rendered by a template"
    yield from unread_notes(template)


def _first(found: Iterable[Prompt | None]) -> Prompt | None:
    return next((prompt for prompt in found if prompt is not None), None)


def unread_notes(template: ChatTemplate) -> Iterator[str]:
    """A line for each variable of the config that the template does not read. Raises ConfigError if it does not
    parse."""
    for name in template.unread():
        yield f"data.template.kwargs.{name} has no effect: the chat template does not read {name}"


def told_of(name: str) -> str:
    """What the prompts of a held-out set are called, by the set's name."""
    return "held-out prompts" if name == PLAIN else f"held-out prompts of {name}"


def length_notes(config: TrainConfig, lengths: Mapping[str, tuple[int, Fit]]) -> Iterator[str]:
    """How many prompts are too long. `lengths`: number of prompts and what was found of them, by what they are
    called."""
    for what, (count, fit) in lengths.items():
        if fit.too_long:
            yield (
                f"{len(fit.too_long):,} of {count:,} {what} are too long, with more than {fit.longest:,} tokens "
                f"(data.too_long: {config.data.too_long})"
            )


def first_prompt(plan: Plan) -> list[str]:
    """The first prompt as the policy reads it, special tokens included."""
    prompt, codec = plan.prompts[0], plan.codec()
    ids = codec.encode(prompt.content, prompt.tools)
    if plan.config.data.too_long == "truncate_left":
        ids = codec.truncated_left(ids, plan.fit.longest)
    shown = codec.decode(ids, keep_special_tokens=True)
    if len(shown) > _FIRST + _LAST:
        left_out = len(shown) - _FIRST - _LAST
        shown = f"{shown[:_FIRST]}[... {left_out:,} characters ...]{shown[-_LAST:]}"
    return [
        f"prompt    {prompt.prompt_id!r} as the policy reads it, {len(ids)} tokens:",
        *(f"  | {line}" for line in shown.split("\n")),
    ]
