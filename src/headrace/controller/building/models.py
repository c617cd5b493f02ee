"""Loads the models of a training run, each onto the lane that it will compute on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.algorithms.kl_controllers import KLCoefficient
from headrace.config import TrainConfig
from headrace.config.roles import ProximalConfig, ReferenceConfig, TeacherConfig
from headrace.controller.building.engine_workers import load_engines, load_judges
from headrace.controller.building.frozen_workers import frozen_ranks
from headrace.controller.building.reward_model import load_model_reward
from headrace.controller.building.trainer_workers import policy_group, value_group
from headrace.controller.building.weight_relays import weight_relays
from headrace.controller.checkpointer import Part
from headrace.controller.planning.plan import Plan
from headrace.engines.absent import AbsentEngine
from headrace.engines.pool import EnginePool
from headrace.rewards.model_reward import ModelReward
from headrace.roles.columns.frozen import AskedModel
from headrace.roles.columns.reward_model import AskedRewardModel
from headrace.roles.model_return import ModelReturn
from headrace.roles.workers.frozen import FrozenWorker, ProximalWorker, ReferenceWorker, TeacherWorker
from headrace.runtime.protocol import Runtime
from headrace.runtime.together import together
from headrace.training.group import TrainerGroup
from headrace.weights.relay.relays import Relays

ScorerConfig = ReferenceConfig | ProximalConfig | TeacherConfig


@dataclass(frozen=True, slots=True)
class Models:
    """The two ends of the weight plane, each with weights of its own."""

    trainer: TrainerGroup
    engines: EnginePool
    """Of one that is absent where nothing is generated."""
    kl: KLCoefficient
    """Shared by whoever applies it."""
    critic: TrainerGroup | None = None
    reference: AskedModel | None = None
    """None also where the actor's model is its own reference."""
    teacher: AskedModel | None = None
    proximal: AskedModel | None = None
    """None also where the actor computes the proximal log-probs itself."""
    refreshed: Part | None = None
    """The reference as part of a checkpoint, if it changes."""
    reward: ModelReward | None = None
    judges: Mapping[str, EnginePool] = field(default_factory=dict)
    """See `load_judges`."""
    relays: Relays | None = None
    """By which versions reach those that do not see the trainer's memory; None where nobody needs them."""
    renew: Mapping[str, Callable[[], Awaitable[None]]] = field(default_factory=dict)
    """How the trainer and the critic, by the name of their kind of worker, are made anew as they were at the beginning:
    those that can be."""

    @property
    def groups(self) -> tuple[TrainerGroup, ...]:
        """Those that train."""
        return (self.trainer,) if self.critic is None else (self.trainer, self.critic)

    @property
    def returns(self) -> tuple[ModelReturn, ...]:
        """Of those that only score, what brings them back: of each that can be lost."""
        return (*self.scorer_returns, *self.reward_returns)

    @property
    def scorer_returns(self) -> tuple[ModelReturn, ...]:
        """Of those that score rows to train."""
        asked = [self.reference, self.teacher, self.proximal]
        found = [model.returns for model in asked if model is not None]
        return tuple(one for one in found if one is not None)

    @property
    def reward_returns(self) -> tuple[ModelReturn, ...]:
        """Of the reward model, which evaluations ask, too."""
        model = None if self.reward is None else self.reward.model
        return (model.returns,) if isinstance(model, AskedRewardModel) and model.returns is not None else ()

    @property
    def parts(self) -> dict[str, Part]:
        """What a checkpoint holds beside the trainer's state, by the name of its folder."""
        others: dict[str, Part | None] = {"critic": self.critic, "reference": self.refreshed}
        return {name: other for name, other in others.items() if other is not None}


async def load_models(
    plan: Plan, runtime: Runtime, folder: Path, in_memory: Callable[[str], Path] | None = None
) -> Models:
    """Load the model for both sides. The engine serves version 0 until it is updated. `in_memory` makes a folder that
    the run's processes share, of the name that it is given."""
    config, algorithm = plan.config, plan.config.algorithm

    async def frozen(kind: type[FrozenWorker], path: str, own: ScorerConfig) -> AskedModel:
        return await frozen_ranks(kind, path, own.max_tokens_per_microbatch, own.layout, plan, runtime)

    makes: dict[str, Callable[[], Awaitable[Any]]] = {"trainer": lambda: policy_group(plan, runtime, folder, in_memory)}
    if plan.needs_engine:
        makes["engine"] = lambda: load_engines(plan, runtime, folder)
    makes["reward"] = lambda: load_model_reward(plan, runtime)
    if plan.needs_engine:
        makes["judges"] = lambda: load_judges(plan, runtime)
    if algorithm.needs_critic:
        makes["critic"] = lambda: value_group(plan, runtime, _critic_path(plan), folder)
    if algorithm.needs_reference and config.reference.placement != "hybrid":
        makes["reference"] = lambda: frozen(ReferenceWorker, config.reference.model or plan.weights, config.reference)
    if config.copies_proximal:
        makes["proximal"] = lambda: frozen(ProximalWorker, plan.weights, config.proximal)
    if algorithm.needs_teacher:
        makes["teacher"] = lambda: frozen(TeacherWorker, config.teacher.model or plan.weights, config.teacher)
    made = await _made(makes, config)
    models = Models(
        made["trainer"],
        made.get("engine") or EnginePool([AbsentEngine()], runtime.clock),
        KLCoefficient(algorithm.kl, plan.pieces.kl_controller),
        critic=made.get("critic"),
        reference=made.get("reference"),
        teacher=made.get("teacher"),
        proximal=made.get("proximal"),
        reward=made["reward"],
        judges=made.get("judges") or {},
    )
    if algorithm.needs_reference and config.reference.refresh_every is not None:
        models = replace(models, refreshed=models.reference or models.trainer.kept_reference)
    if in_memory is not None and plan.needs_engine and plan.transport == "shm":
        relays = await weight_relays(models.trainer, models.engines, models.proximal, config, runtime, in_memory)
        models = replace(models, relays=relays)
    # In this process nothing is loaded while anything computes.
    groups = {"trainer": models.trainer, "critic": models.critic}
    renew = {name: group.restart for name, group in groups.items() if group and name in config.trainer_processes}
    return replace(models, renew=renew)


async def _made(makes: Mapping[str, Callable[[], Awaitable[Any]]], config: TrainConfig) -> dict[str, Any]:
    """What each gives. Those that are in processes of their own begin side by side; those of this process after one
    another, in their order: they share its processors, and draw from one generator."""
    apart = {
        *config.trainer_processes,
        *config.scorer_processes,
        *(("engine", "judges") if config.engine.apart else ()),
    }
    found: dict[str, Any] = {}

    async def of(names: Sequence[str]) -> None:
        for name in names:
            found[name] = await makes[name]()

    await together(
        [of([name for name in makes if name not in apart]), *(of([name]) for name in makes if name in apart)]
    )
    return found


def _critic_path(plan: Plan) -> str:
    if plan.origin is not None and plan.origin.critic is not None:
        return str(plan.origin.critic / "model")
    return plan.config.critic.model or plan.weights
