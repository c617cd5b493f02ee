"""The roles that fill columns between the rollout and the trainers: models that score, and the user's own stages."""

from __future__ import annotations

from headrace.controller.models import Models
from headrace.controller.plan import Plan
from headrace.roles.actor import TRAINER_LANE
from headrace.roles.context import RoleContext
from headrace.roles.critic import CRITIC_LANE
from headrace.roles.function_stage import FunctionStageRole
from headrace.roles.reward import RewardRole
from headrace.roles.scorer import FollowedWeights, ScorerRole
from headrace.runtime.signal import Signal
from headrace.weights.version import INITIAL, Version


def scorers(
    context: RoleContext, plan: Plan, models: Models, published: Signal, committed: Version
) -> tuple[ScorerRole | RewardRole, ...]:
    """Those that the recipe has stages for."""
    config = plan.config
    found: list[ScorerRole | RewardRole] = []
    if models.reward is not None:
        found.append(RewardRole(context, models.reward))
    if models.proximal is not None:
        follows = FollowedWeights(
            context,
            models.publisher.receiver(),
            published,
            models.proximal.take,
            lane="proximal",
            loaded=0 if committed == INITIAL else None,
        )
        found.append(
            ScorerRole(
                context,
                name="proximal",
                column="proximal",
                lane="proximal",
                score=models.proximal.logprobs,
                max_tokens=config.proximal.max_tokens_per_microbatch,
                follows=follows,
            )
        )
    if plan.recipe.has("reference"):
        own = models.reference
        found.append(
            ScorerRole(
                context,
                name="reference",
                column="reference",
                lane=TRAINER_LANE if own is None else "reference",
                score=models.trainer.reference_logprobs if own is None else own.logprobs,
                max_tokens=config.reference.max_tokens_per_microbatch,
            )
        )
    if models.teacher is not None:
        found.append(
            ScorerRole(
                context,
                name="teacher",
                column="teacher",
                lane="teacher",
                score=models.teacher.logprobs,
                max_tokens=config.teacher.max_tokens_per_microbatch,
            )
        )
    if models.critic is not None:
        found.append(
            ScorerRole(
                context,
                name="critic.value",
                column="values",
                lane=CRITIC_LANE,
                score=models.critic.outputs,
                max_tokens=config.critic.max_tokens_per_microbatch,
            )
        )
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
