"""What the policy acts in."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.experience.text.tokens import Content


@dataclass(frozen=True, slots=True)
class StepResult:
    observation: str
    """What the policy reads next; ignored when `done`."""
    reward: float | None = None
    """Added to the episode's reward. An episode with none at all is scored by the reward function."""
    done: bool = False


class Environment(Protocol):
    """One is made for each episode, without arguments. Both methods may be plain or `async`.

    They run in a rollout worker, in the event loop that all its episodes share (with `rollout.workers: 0` in the run's
    own process): one that waits for something must be `async`, and whatever can hang for good belongs into a process of
    its own.
    """

    def reset(self, row: dict[str, Any]) -> Content | Awaitable[Content | None] | None:
        """Begin an episode on a row of the dataset. What the policy reads first; None is the row's prompt."""

    def step(self, action: str) -> StepResult | Awaitable[StepResult]:
        """Take what the policy wrote in its turn."""
