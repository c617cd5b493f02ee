"""What comes of scoring one response."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from headrace.experience.failures import FailureKind

Scored = dict[str, float]
"""A reward, `score`, with metrics by their names; without `score` the reward does not apply to the sample."""
SCORE = "score"
Verdict = tuple[float | Scored | Sequence[float | Scored] | None, str | None]
"""(reward, None), (a reward with metrics, None), (a list of these for a batch or a group, None) or (None, failure)."""
MOST_METRICS, LONGEST_NAME = 64, 100
"""Metrics of one reward, and characters of the name of each."""


@dataclass(frozen=True, slots=True)
class RewardOutcome:
    """Either a finite reward or a failure; neither, while only the group's function or the reward model can tell."""

    value: float | None
    failure: str | None = None
    """`kind: detail`, with a kind of `FailureKind`."""
    terms: Mapping[str, float] = field(default_factory=dict)
    """Of a reward of several terms the value of each, by its name, before it is weighted; and the metrics that came
    with rewards."""


LARGEST = 1e15
"""A reward is squared and summed over a batch in single precision, whose largest number is 3e38."""


class FailedReward(Exception):
    """Why there is no reward, in words that can be counted."""

    def __init__(self, kind: FailureKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class NotARewardError(ValueError):
    """A reward function or an environment gave something else than a finite number."""


def as_reward(value: object) -> float:
    """`value` as a float: any finite real number, or a bool as 0 or 1. Raises NotARewardError."""
    if not hasattr(value, "__float__") and not hasattr(value, "__index__"):
        raise NotARewardError(f"returned {reprlib.repr(value)} ({type(value).__name__}), which is not a number")
    try:
        reward = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise NotARewardError(f"returned {reprlib.repr(value)}, which is not a number: {error}") from error
    if not math.isfinite(reward):
        raise NotARewardError(f"returned {reward}, which is not finite")
    if not is_reward(reward):
        raise NotARewardError(f"returned {reward:g}, which is beyond {LARGEST:g}; scale rewards to about 1")
    return reward


def as_scored(value: object, *, lenient: bool = False) -> float | Scored:
    """A number as `as_reward`; a mapping with `score` and metrics with each number as a float. `lenient`: what is no
    number among the metrics is left out. Raises NotARewardError that names the wrong entry."""
    if type(value) in (float, int, bool) or not isinstance(value, Mapping):
        return as_reward(value)
    if SCORE not in value:
        raise NotARewardError(
            f"returned {reprlib.repr(value)}, a mapping without 'score'; return a number, or {{'score': number, ...}}"
        )
    scored: Scored = {}
    for name, entry in value.items():
        subject = f"returned a mapping whose entry {reprlib.repr(name)} is"
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            raise NotARewardError(f"{subject} no metric's name; give text of at most {LONGEST_NAME} characters")
        try:
            scored[name] = as_reward(entry)
        except NotARewardError as error:
            if not lenient or name == SCORE:
                raise NotARewardError(f"{subject} {str(error).removeprefix('returned ')}") from error
    if len(scored) > MOST_METRICS + 1:
        raise NotARewardError(f"returned {len(scored) - 1} metrics, where {MOST_METRICS} is the most")
    return scored


def is_scored(value: object) -> TypeGuard[Scored]:
    """Whether this is a reward with metrics, as a process gave it that is not believed."""
    return (
        isinstance(value, dict)
        and len(value) <= MOST_METRICS + 1
        and all(isinstance(name, str) and len(name) <= LONGEST_NAME for name in value)
        and all(map(is_reward, value.values()))
    )


def is_reward(value: object) -> TypeGuard[float]:
    """Whether a float can be trained on: finite, and of a size whose square is."""
    return isinstance(value, float) and abs(value) <= LARGEST
