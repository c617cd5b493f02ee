"""The roles that fill columns between the rollout and the trainers: models that score, and the user's own stages."""

from __future__ import annotations

from functools import partial
from typing import Any

from headrace.config.train import CriticConfig, ProximalConfig, ReferenceConfig, TeacherConfig
from headrace.controller.models import Models
from headrace.controller.planning.plan import Plan
from headrace.models.values import values_and_last
from headrace.roles.actor import TRAINER_LANE
from headrace.roles.context import RoleContext
from headrace.roles.critic import CRITIC_LANE
from headrace.roles.function_stage import FunctionStageRole
from headrace.roles.reward import RewardRole
from headrace.roles.scorer import FollowedWeights, Score, ScorerRole
from headrace.runtime.signal import Signal
from headrace.weights.version import INITIAL, Version

ScorerSettings = ReferenceConfig | ProximalConfig | TeacherConfig | CriticConfig


def scorers(
    context: RoleContext, plan: Plan, models: Models, published: Signal, committed: Version
) -> tuple[ScorerRole | RewardRole, ...]:
    """Those that the recipe has stages for."""
    config = plan.config
    by_group = config.async_.in_order
    found: list[ScorerRole | RewardRole] = []

    def add(name: str, section: ScorerSettings, score: Score, **changes: Any) -> None:
        """A scorer that names its stage, its column and its lane alike, but for `changes`."""
        named = {"name": name, "columns": (name,), "lane": name, "by_group": by_group, **changes}
        found.append(ScorerRole(context, score=score, max_tokens=section.max_tokens_per_microbatch, **named))

    if models.reward is not None:
        found.append(RewardRole(context, models.reward, by_group=by_group))
    if models.proximal is not None:
        follows = FollowedWeights(
            context,
            models.publisher.receiver(),
            published,
            models.proximal.take,
            lane="proximal",
            loaded=0 if committed == INITIAL else None,
        )
        add("proximal", config.proximal, models.proximal.logprobs, follows=follows)
    elif plan.recipe.has("proximal"):
        # A row enters a batch once the actor has stepped to the version that the batch begins with, and the actor
        # steps no further before all of its rows are scored: the trainer has those weights.
        add("proximal", config.proximal, models.trainer.logprobs, lane=TRAINER_LANE)
    if models.reference is not None:
        add("reference", config.reference, models.reference.logprobs)
    elif plan.recipe.has("reference"):
        add("reference", config.reference, models.trainer.reference_logprobs, lane=TRAINER_LANE)
    if models.teacher is not None:
        add("teacher", config.teacher, models.teacher.logprobs)
    if models.critic is not None:
        values: dict[str, Any] = {"columns": ("values",)}
        score: Score = models.critic.outputs
        if config.algorithm.truncated == "bootstrap":
            values = {"columns": ("values", "last_value"), "reads": ("truncated",)}
            score = partial(models.critic.outputs, of=values_and_last)
        add("critic.value", config.critic, score, lane=CRITIC_LANE, **values)
    return tuple(found)


def own_stages(context: RoleContext, plan: Plan) -> tuple[FunctionStageRole, ...]:
    return tuple(
        FunctionStageRole(
            context,
            function,
            name=stage.name,
            reads=stage.reads,
            writes=stage.writes,
            unit=stage.unit,
        )
        for stage, function in zip(plan.config.algorithm.stages, plan.stages, strict=True)
    )
