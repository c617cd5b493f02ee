"""What comes of scoring one response."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

from headrace.rollout.failures import FailureKind

Verdict = tuple[float | list[float] | None, str | None]
"""(reward, None), (a reward for each sample of a group, None) or (None, failure)."""


@dataclass(frozen=True, slots=True)
class RewardOutcome:
    """Either a finite reward or a failure; neither, while only the group's function or the reward model can tell."""

    value: float | None
    failure: str | None = None
    """`kind: detail`, with a kind of `FailureKind`."""
    terms: Mapping[str, float] = field(default_factory=dict)
    """Of a reward of several terms the value of each, by its name, before it is weighted."""


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


def is_reward(value: object) -> TypeGuard[float]:
    """Whether a float can be trained on: finite, and of a size whose square is."""
    return isinstance(value, float) and abs(value) <= LARGEST
