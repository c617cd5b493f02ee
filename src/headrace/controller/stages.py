"""The roles that fill columns between the rollout and the trainers: models that score, and the user's own stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from headrace.config.train import CriticConfig, ProximalConfig, ReferenceConfig, TeacherConfig
from headrace.controller.models import Models
from headrace.controller.planning.plan import Plan
from headrace.experience.restored_refs import RestoredRefs
from headrace.models.packing import MicroBatch
from headrace.models.values import values_and_last
from headrace.roles.actor import TRAINER_LANE
from headrace.roles.context import RoleContext
from headrace.roles.critic import CRITIC_LANE
from headrace.roles.frozen import AskedModel, known_again
from headrace.roles.function_stage import FunctionStageRole
from headrace.roles.functions import LANE, AskedFunctions
from headrace.roles.reward import RewardRole
from headrace.roles.scorer import FollowedWeights, Score, ScorerRole
from headrace.runtime.refs import RefLost
from headrace.runtime.signal import Signal
from headrace.training.rows import RowToTrain
from headrace.training.scoring import Scoring
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
        """A scorer that names its stage and its column alike, but for `changes`."""
        named = {"name": name, "columns": (name,), "by_group": by_group, **changes}
        found.append(ScorerRole(context, score=score, max_tokens=section.max_tokens_per_microbatch, **named))

    def asked(model: AskedModel) -> Score:
        what = f"scores of {model.name}"

        async def score(rows: Sequence[RowToTrain]) -> Sequence[Sequence[Any]]:
            try:
                return await context.computed(model.name, what, model.scores(rows))
            except RefLost:
                if not isinstance(context.refs, RestoredRefs):
                    raise
                again = await context.compute(LANE, "lost columns", known_again, context.refs, rows)
                return await context.computed(model.name, what, model.scores(again))

        return score

    def on_lane(lane: str, name: str, score: Callable[[MicroBatch], Tensor], reads: Sequence[str] = ()) -> Score:
        """Of a model that a trainer has."""
        return partial(context.compute, lane, f"scores of {name}", Scoring(context.refs, score, name, reads))

    if models.reward is not None:
        found.append(RewardRole(context, models.reward, by_group=by_group))
    if models.proximal is not None:
        follows = FollowedWeights(
            context,
            models.publisher.receiver(),
            published,
            models.proximal.take,
            name="proximal",
            loaded=0 if committed == INITIAL else None,
        )
        add("proximal", config.proximal, asked(models.proximal), follows=follows)
    elif plan.recipe.has("proximal"):
        # A row enters a batch once the actor has stepped to the version that the batch begins with, and the actor
        # steps no further before all of its rows are scored: the trainer has those weights.
        add("proximal", config.proximal, on_lane(TRAINER_LANE, "proximal", models.trainer.logprobs))
    if models.reference is not None:
        add("reference", config.reference, asked(models.reference))
    elif plan.recipe.has("reference"):
        add("reference", config.reference, on_lane(TRAINER_LANE, "reference", models.trainer.reference_logprobs))
    if models.teacher is not None:
        add("teacher", config.teacher, asked(models.teacher))
    if models.critic is not None:
        values: dict[str, Any] = {"columns": ("values",)}
        outputs: Callable[[MicroBatch], Tensor] = models.critic.outputs
        if config.algorithm.truncated == "bootstrap":
            values = {"columns": ("values", "last_value"), "reads": ("truncated",)}
            outputs = partial(models.critic.outputs, of=values_and_last)
        score = on_lane(CRITIC_LANE, "values", outputs, values.get("reads", ()))
        add("critic.value", config.critic, score, **values)
    return tuple(found)


def own_stages(context: RoleContext, plan: Plan, functions: AskedFunctions) -> tuple[FunctionStageRole, ...]:
    return tuple(
        FunctionStageRole(context, functions, name=stage.name, reads=stage.reads, unit=stage.unit)
        for stage in plan.config.algorithm.stages
    )
