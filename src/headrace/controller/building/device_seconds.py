"""The seconds in which each of a run's models was at work, but for the policy's engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from headrace.controller.building.models import Models
from headrace.engines.pool import EnginePool
from headrace.rewards.model_reward import ModelReward
from headrace.roles.columns.reward_model import AskedRewardModel

DeviceSeconds = Callable[[], dict[str, float]]
"""Seconds since it was made, by who."""


def device_seconds(models: Models) -> DeviceSeconds:
    """Of all that train, score and judge."""
    scorers = [model for model in (models.reference, models.proximal, models.teacher) if model is not None]
    return _added(
        [
            *(group.busy_s for group in models.groups),
            *(scorer.busy_s for scorer in scorers),
            scoring_seconds(models.reward, [*models.judges.values()]),
        ]
    )


def scoring_seconds(reward: ModelReward | None, judges: Sequence[EnginePool]) -> DeviceSeconds:
    """Of the reward model, if there is one, and of judges that are models of their own."""
    found: list[DeviceSeconds] = []
    if reward is not None and isinstance(reward.model, AskedRewardModel):
        found.append(reward.model.busy_s)
    members = [member for judge in judges for member in judge.members]
    found.append(lambda: {member.name: member.stats().busy_s for member in members})
    return _added(found)


def _added(parts: Iterable[DeviceSeconds]) -> DeviceSeconds:
    every = [*parts]
    return lambda: {name: seconds for part in every for name, seconds in part().items()}
