"""Reward functions written for other trainers, called as these call them.

The process that scores rewards reads this file, so it imports the standard library alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.experience.text.conversation import Messages, conversation, opening
from headrace.plugins.named import NOTHING_GIVEN, Given, accepts_keyword, load_function, load_named
from headrace.rewards.outcome import NotARewardError

_PROMPT_COLUMNS = ("prompt", "completion", "completion_ids", "prompts", "completions")
_OF_TRLS_TRAINER = ("trainer_state", "log_extra", "log_metric", "environments")
"""What TRL's trainer gives beside the batch."""
_VERL = ("data_source", "solution_str", "ground_truth")


@dataclass(frozen=True, slots=True)
class Asked:
    """One response that is to be scored."""

    response: str
    row: dict[str, Any]
    prompt: str | Messages
    messages: Messages | None
    """The conversation, where it is more than the prompt and the response."""
    ids: Sequence[int] | None = None
    """Tokens after the prompt, where they are asked for."""
    earlier: Sequence[Messages] = ()
    """The conversations before this one, of an episode of several histories."""

    def conversation(self) -> Messages:
        return conversation(self.prompt, self.response, self.messages)

    def histories(self) -> list[Messages]:
        """All conversations of the episode; the last one is `conversation`."""
        return [*self.earlier, self.conversation()]


Call = Callable[[Asked], Any]


def trl_call(
    spec: str, columns: Sequence[str] | None, objects: Given = NOTHING_GIVEN
) -> tuple[Call, Callable[[Any], Any]]:
    """How TRL's GRPO calls `f(prompts, completions, completion_ids, **columns)`, with a batch of one sample; and what
    becomes of its list: its one number, or None where it does not apply.

    A prompt of messages has a completion of messages. `columns` of the rows, if they are known: a parameter without a
    default that is none of them is an error. Raises ConfigError and ValueError.
    """
    given = ("prompts", "completions", "completion_ids")
    function = load_named(spec, "reward.function", objects)
    required, takes_all, known = _parameters(function)
    if missing := [name for name in required if name in _OF_TRLS_TRAINER]:
        raise ValueError(
            f"reward.function is {spec!r} in the style of trl, and wants {missing[0]}, which TRL's trainer gives and "
            "Headrace does not; give the parameter a default"
        )
    if columns is not None and (absent := [name for name in required if name not in (*given, *columns)]):
        raise ValueError(
            f"reward.function is {spec!r} in the style of trl, and wants {absent[0]!r}, which is no column of the data "
            f"(it has {', '.join(columns)}); give the rows one, or the parameter a default"
        )
    if not takes_all and "completions" not in known:
        raise ValueError(
            f"reward.function is {spec!r} in the style of trl, and has no parameter completions; write "
            "f(prompts, completions, **columns)"
        )

    def call(asked: Asked) -> Any:
        chat = not isinstance(asked.prompt, str)
        whole = asked.conversation()
        values: dict[str, Any] = {name: [value] for name, value in asked.row.items() if name not in _PROMPT_COLUMNS}
        values["prompts"] = [asked.prompt]
        values["completions"] = [whole[len(opening(asked.prompt)) :] if chat else asked.response]
        values["completion_ids"] = [list(asked.ids or ())]
        return function(**{name: value for name, value in values.items() if takes_all or name in known})

    return call, _only


def verl_call(spec: str, answer_column: str, answer: Any, given: Given = NOTHING_GIVEN) -> Call:
    """How verl calls `compute_score(data_source, solution_str, ground_truth, extra_info)`. Raises ConfigError."""
    function = load_function(spec, "reward.function", (), ("extra_info",), _VERL, awaited=True, given=given)
    takes_extra = accepts_keyword(function, "extra_info")

    def call(asked: Asked) -> Any:
        row = asked.row
        extra = {"extra_info": dict(row.get("extra_info") or {})} if takes_extra else {}
        return function(
            data_source=row.get("data_source") or "",
            solution_str=asked.response,
            ground_truth=ground_truth(row, answer_column, answer),
            **extra,
        )

    return call


def ground_truth(row: Mapping[str, Any], answer_column: str, answer: Any) -> Any:
    """As verl's rows have it, in `reward_model`, or else as Headrace's do. Raises ValueError if there is none."""
    if answer is not None:
        return answer
    model = row.get("reward_model")
    if isinstance(model, Mapping) and model.get("ground_truth") is not None:
        return model["ground_truth"]
    if row.get(answer_column) is None:
        raise ValueError(
            f"the row has no ground truth, neither as reward_model: {{ground_truth: ...}} nor in column "
            f"{answer_column!r}"
        )
    return row[answer_column]


def _only(value: Any) -> Any:
    if isinstance(value, str) or not hasattr(value, "__len__") or not hasattr(value, "__getitem__"):
        raise NotARewardError(f"returned {value!r}, and in the style of trl it returns a list of numbers")
    if len(value) != 1:
        raise NotARewardError(f"returned {len(value)} rewards for 1 completion")
    return value[0]


def _parameters(function: Callable[..., Any]) -> tuple[list[str], bool, set[str]]:
    """Names without a default, whether any other name is taken, and all names."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return [], True, set()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return [p.name for p in named if p.default is p.empty], takes_all, {p.name for p in named}
