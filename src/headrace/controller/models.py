"""Loads the models of a training run, each onto the lane that it will compute on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from headrace.algorithms.kl_controllers import KLCoefficient
from headrace.algorithms.policy_loss import PolicyLoss
from headrace.controller.checkpointer import Saved
from headrace.controller.engine_workers import are_workers, engine_workers
from headrace.controller.frozen_workers import frozen_worker
from headrace.controller.judge_engines import load_judges
from headrace.controller.planning.plan import Plan
from headrace.engines.absent import AbsentEngine
from headrace.engines.embedded.engine import LANE, EmbeddedEngine
from headrace.engines.pool import EnginePool
from headrace.engines.protocol import Engine, EngineError
from headrace.models.loading import load_causal_lm, load_reward_model, load_value_model, resolve_device
from headrace.models.values import token_values
from headrace.rewards.model import ModelReward
from headrace.roles.actor import TRAINER_LANE
from headrace.roles.frozen import AskedModel
from headrace.roles.workers.frozen import FrozenSpec, FrozenWorker, ProximalWorker, ReferenceWorker, TeacherWorker
from headrace.runtime.protocol import Runtime
from headrace.training.frozen import FrozenRewardModel, HybridReference
from headrace.training.objective import PolicyObjective, PolicyOutputs, ValueObjective, output_columns
from headrace.training.protocol import PolicyTrainer, Trainer
from headrace.training.trainer import HFTrainer
from headrace.weights.plane import WeightPublisher, WeightReceiver
from headrace.weights.transport import open_transport
from headrace.weights.version import INITIAL

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Models:
    """The two ends of the weight plane, each with weights of its own."""

    trainer: PolicyTrainer
    engines: EnginePool
    """Of one that is absent where nothing is generated."""
    publisher: WeightPublisher
    kl: KLCoefficient
    """Shared by whoever applies it."""
    critic: Trainer | None = None
    reference: AskedModel | None = None
    """None also where the actor's model is its own reference."""
    teacher: AskedModel | None = None
    proximal: AskedModel | None = None
    """None also where the actor computes the proximal log-probs itself."""
    refreshed: Saved | AskedModel | None = None
    """The reference as part of a checkpoint, if it changes."""
    reward: ModelReward | None = None
    judges: Mapping[str, EnginePool] = field(default_factory=dict)
    """See `load_judges`."""
    renew: Callable[[str], Awaitable[None]] | None = None
    """Makes the trainer or the critic, by the name of its worker, anew as it was at the beginning; None where neither
    can be: then its loss ends the run."""

    @property
    def saved(self) -> dict[str, Saved]:
        """What a checkpoint holds beside the trainer's state, by the name of its folder."""
        hybrid = None if self.refreshed is self.reference else self.refreshed
        others: dict[str, Any] = {"critic": self.critic, "reference": hybrid}
        return {name: other for name, other in others.items() if other is not None}

    @property
    def asked(self) -> dict[str, AskedModel]:
        """What a checkpoint holds besides of models that are asked, by the name of its folder."""
        own = self.reference
        return {"reference": own} if own is not None and self.refreshed is own else {}


async def load_models(
    plan: Plan, runtime: Runtime, folder: Path, in_memory: Callable[[str], Path] | None = None
) -> Models:
    """Load the model for both sides. The engine serves version 0 until it is updated. `in_memory` makes a folder that
    the run's processes share, of the name that it is given."""
    config = plan.config
    device = resolve_device(config.model.device)

    algorithm, dtype = config.algorithm, getattr(torch, config.model.dtype)
    coefficient = KLCoefficient(algorithm.kl, plan.pieces.kl_controller)
    sampling = config.rollout.sampling
    temperature = sampling.temperature
    columns = output_columns(algorithm, truncated=sampling.truncates, record_entropy=plan.records_entropy)

    def trainer() -> HFTrainer:
        made = HFTrainer(
            load_causal_lm(plan.weights, dtype=torch.float32, device=device),
            config=config.trainer,
            loss=PolicyObjective(algorithm, PolicyLoss(algorithm, plan.pieces, coefficient), plan.pieces, columns),
            total_steps=max(plan.total_batches - plan.warm_up_batches, 1) * algorithm.steps_per_batch,
            temperature=temperature,
            dtype=dtype,
            gradient_checkpointing=config.model.gradient_checkpointing,
            tokenizer=plan.tokenizer,
            seed=config.seed,
            between_layers=runtime.rebalance,
            outputs=PolicyOutputs(columns, temperature),
            in_order=config.async_.in_order,
        )
        if algorithm.needs_reference and config.reference.placement == "hybrid":
            made.keep_reference()
        return made

    async def frozen(kind: type[FrozenWorker], path: str) -> AskedModel:
        spec = FrozenSpec(path, config.model.dtype, str(device), temperature)
        return await frozen_worker(kind, spec, runtime, config)

    def critic() -> HFTrainer:
        return HFTrainer(
            load_value_model(_critic_path(plan), dtype=torch.float32, device=device),
            config=config.critic,
            loss=ValueObjective(config.critic.clip, plan.pieces.value_loss),
            total_steps=plan.total_batches * algorithm.epochs_per_batch * config.critic.updates_per_batch,
            dtype=dtype,
            gradient_checkpointing=config.model.gradient_checkpointing,
            tokenizer=plan.tokenizer,
            seed=config.seed,
            outputs=token_values,
            in_order=config.async_.in_order,
        )

    async def load(make: Callable[[], T]) -> T:
        return await runtime.compute(TRAINER_LANE, make)

    policy = await load(trainer)
    models = Models(
        policy,
        await load_engines(plan, runtime) if plan.needs_engine else EnginePool([AbsentEngine()], runtime.clock),
        open_transport(config.transport if plan.needs_engine else "memory", folder / "weights", in_memory),
        coefficient,
        reward=await load_model_reward(plan, runtime),
        judges=await load_judges(plan, runtime) if plan.needs_engine else {},
    )
    if algorithm.needs_critic:
        models = replace(models, critic=await load(critic))
    if algorithm.needs_reference and config.reference.placement != "hybrid":
        models = replace(models, reference=await frozen(ReferenceWorker, config.reference.model or plan.weights))
    if algorithm.needs_reference and config.reference.refresh_every is not None:
        models = replace(models, refreshed=models.reference or HybridReference(policy))
    if config.copies_proximal:
        models = replace(models, proximal=await frozen(ProximalWorker, plan.weights))
    if algorithm.needs_teacher:
        teacher = config.teacher.model
        assert teacher is not None
        models = replace(models, teacher=await frozen(TeacherWorker, teacher))
    return models


def _critic_path(plan: Plan) -> str:
    if plan.origin is not None and plan.origin.critic is not None:
        return str(plan.origin.critic / "model")
    return plan.config.critic.model or plan.weights


async def load_engines(
    plan: Plan, runtime: Runtime, *, returns: bool = True, plane: WeightPublisher | None = None
) -> EnginePool:
    """The engines, each with weights of its own, not started. `returns`: one that died comes back, where weights are
    published. `plane`: has them as version 0, where no trainer publishes it and they are needed again."""
    config = plan.config
    dtype = getattr(torch, config.engine.dtype or config.model.dtype)
    if are_workers(config):
        if plane is not None and not config.engine.process:
            model = await runtime.compute(TRAINER_LANE, lambda: load_causal_lm(plan.weights, dtype=dtype, device="cpu"))
            await runtime.compute(TRAINER_LANE, plane.publish, INITIAL, _on_host(model))
        return await engine_workers(plan, runtime, returns=returns)
    device = resolve_device(config.model.device)
    engines: list[Engine] = []
    for index in range(config.engine.replicas):
        model = await runtime.compute(TRAINER_LANE, lambda: load_causal_lm(plan.weights, dtype=dtype, device=device))
        if plane is not None and not index:
            await runtime.compute(TRAINER_LANE, plane.publish, INITIAL, _on_host(model))
        lane = f"{LANE}/{index}" if index else LANE
        engines.append(EmbeddedEngine(model, config=config.engine, runtime=runtime, lane=lane, cache=plan.memory.cache))
    return EnginePool(
        engines,
        runtime.clock,
        revive=_successor if returns else None,
        return_deadline_s=config.engine.return_deadline_s,
        spread=config.engine.spread,
    )


def _on_host(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    return ((name, parameter.detach().cpu()) for name, parameter in model.named_parameters())


async def _successor(dead: Engine, receiver: WeightReceiver) -> Engine:
    if not isinstance(dead, EmbeddedEngine):
        raise EngineError(f"{type(dead).__name__} cannot be built again")
    return await dead.successor(receiver)


async def load_model_reward(plan: Plan, runtime: Runtime) -> ModelReward | None:
    """The reward model, if there is one."""
    config, model = plan.config.reward.model, plan.config.model
    path = config.path
    if path is None:
        return None
    dtype, device = getattr(torch, model.dtype), resolve_device(model.device)
    frozen = await runtime.compute(
        TRAINER_LANE, lambda: FrozenRewardModel(load_reward_model(path, dtype=dtype, device=device))
    )
    return ModelReward(frozen.scores, config.weight, config.max_tokens_per_microbatch, runtime)
