"""The roles that fill columns between the rollout and the trainers: models that score, the user's own stages, and
advantages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from headrace.algorithms.estimate import AdvantageEstimator
from headrace.algorithms.kl_controllers import KLCoefficient
from headrace.config.roles import CriticConfig, ProximalConfig, ReferenceConfig, TeacherConfig
from headrace.controller.building.models import Models
from headrace.controller.planning.plan import Plan
from headrace.experience.columns import EXPERTS
from headrace.roles.columns.advantages import AdvantageColumns
from headrace.roles.columns.filling import ColumnRole
from headrace.roles.columns.frozen import AskedModel
from headrace.roles.columns.function_stage import FunctionColumns
from headrace.roles.columns.functions import AskedFunctions
from headrace.roles.columns.reward import RewardColumns
from headrace.roles.columns.reward_model import AskedRewardModel
from headrace.roles.columns.scorer import FollowedWeights, Score, ScoredColumns
from headrace.roles.context import RoleContext
from headrace.roles.known_refs import with_known_refs
from headrace.roles.turns import Turns
from headrace.runtime.signal import Signal
from headrace.training.group import TrainerGroup
from headrace.training.rows.packed_rows import RowToTrain
from headrace.weights.version import INITIAL, Lineage, Version

ScorerSettings = ReferenceConfig | ProximalConfig | TeacherConfig | CriticConfig


def scorers(
    context: RoleContext,
    plan: Plan,
    models: Models,
    published: Signal,
    lineage: Lineage,
    committed: Version,
    turns: Turns,
) -> tuple[ColumnRole, ...]:
    """Those that the recipe has stages for."""
    config = plan.config
    by_group = config.async_.in_order
    found: list[ColumnRole] = []

    def add(name: str, section: ScorerSettings, score: Score, **changes: Any) -> None:
        """A scorer that names its stage and its column alike, but for `changes`."""
        named = {"name": name, "columns": (name,), "by_group": by_group, **changes}
        scored = ScoredColumns(context, score=score, **{"max_tokens": section.max_tokens_per_microbatch, **named})
        found.append(ColumnRole(context, scored))

    def asked(lane: str, name: str, scores: Score) -> Score:
        """What a model gives, with what was lost of its rows put back."""
        what = f"scores of {name}"

        async def score(rows: Sequence[RowToTrain]) -> Sequence[Sequence[Any]]:
            return await with_known_refs(context, rows, lambda known: context.computed(lane, what, scores(known)))

        return score

    def add_model(section: ScorerSettings, model: AskedModel, **changes: Any) -> None:
        if model.returns is not None:
            model.returns.tell_to(context.table.lose, context.report)
        changes["max_tokens"] = section.layout.tokens_at_once(section.max_tokens_per_microbatch)
        add(model.name, section, asked(model.name, model.name, model.scores), returns=model.returns, **changes)

    def of_group(group: TrainerGroup, column: str) -> Score:
        scores = asked(group.name, column, partial(group.scores, column))

        async def score(rows: Sequence[RowToTrain]) -> Sequence[Sequence[Any]]:
            await turns.of_batch()
            return await scores(rows)

        return score

    if models.reward is not None:
        returns = model.returns if isinstance(model := models.reward.model, AskedRewardModel) else None
        if returns is not None:
            returns.tell_to(context.table.lose, context.report)
        outage = None if returns is None else returns.outage
        found.append(ColumnRole(context, RewardColumns(context, models.reward, by_group=by_group, outage=outage)))
    routed = (EXPERTS,) if config.algorithm.router_replay else ()
    if models.proximal is not None:
        follows = FollowedWeights(
            context,
            [models.trainer.receiver().near(worker) for worker in models.proximal.workers],
            published,
            models.proximal.take,
            lineage,
            name="proximal",
            loaded=0 if committed == INITIAL else None,
        )
        add_model(config.proximal, models.proximal, follows=follows, reads=routed)
    elif plan.recipe.has("proximal"):
        # A row enters a batch once the actor has stepped to the version that the batch begins with, and the actor
        # steps no further before all of its rows are scored: the trainer has those weights.
        add("proximal", config.proximal, of_group(models.trainer, "proximal"), reads=routed)
    if models.reference is not None:
        add_model(config.reference, models.reference)
    elif plan.recipe.has("reference"):
        add("reference", config.reference, of_group(models.trainer, "reference"))
    if models.teacher is not None:
        add_model(config.teacher, models.teacher)
    if models.critic is not None:
        bootstraps = config.algorithm.truncated == "bootstrap"
        values: dict[str, Any] = {"columns": ("values", "last_value"), "reads": ("truncated",)} if bootstraps else {}
        add("critic.value", config.critic, of_group(models.critic, "values"), **{"columns": ("values",), **values})
    return tuple(found)


def own_stages(context: RoleContext, plan: Plan, functions: AskedFunctions) -> tuple[ColumnRole, ...]:
    return tuple(
        ColumnRole(context, FunctionColumns(context, functions, name=stage.name, reads=stage.reads, unit=stage.unit))
        for stage in plan.config.algorithm.stages
    )


def advantages_role(
    context: RoleContext, plan: Plan, estimator: AdvantageEstimator, functions: AskedFunctions, kl: KLCoefficient
) -> ColumnRole | None:
    """None where the loss reads a teacher instead."""
    if not plan.recipe.has("advantages"):
        return None
    algorithm = plan.config.algorithm
    moves, whole_batch = algorithm.kl.moves, algorithm.needs_whole_batch
    return ColumnRole(
        context, AdvantageColumns(context, estimator, functions, kl, moves=moves, whole_batch=whole_batch)
    )
