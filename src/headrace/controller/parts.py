"""Builds the parts of a training run and connects them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import torch

from headrace.algorithms.estimate import AdvantageEstimator
from headrace.algorithms.policy_loss import PolicyLoss
from headrace.controller.checkpointer import Checkpointer, Saved
from headrace.controller.judges import load_judges
from headrace.controller.plan import Plan
from headrace.controller.policy_objective import EntropyOutputs, PolicyObjective, ValueObjective, policy_columns
from headrace.controller.recorder import Recorder
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.protocol import Engine, SamplingParams, SwapMode
from headrace.experience.dataset import PromptOrder, PromptSource
from headrace.experience.flow import Flow
from headrace.experience.index import Consumer
from headrace.experience.loader import StreamingLoader
from headrace.experience.schedule import Schedule
from headrace.experience.table import ExperienceTable
from headrace.models.loading import load_causal_lm, load_reward_model, load_value_model, resolve_device
from headrace.models.values import token_values
from headrace.observe.tally import Tally
from headrace.observe.waits import WaitMeter
from headrace.roles import actor
from headrace.roles.actor import TRAINER_LANE, ActorRole, SealedSteps, TrainedStep
from headrace.roles.advantages import AdvantagesRole
from headrace.roles.batch_stats import StalenessRule
from headrace.roles.context import RoleContext
from headrace.roles.critic import CRITIC_LANE, CriticRole
from headrace.roles.evaluator import EvaluatorRole
from headrace.roles.filter import FilterRole
from headrace.roles.function_stage import FunctionStageRole
from headrace.roles.reward import RewardRole
from headrace.roles.rollout import RolloutRole
from headrace.roles.scorer import FollowedWeights, ScorerRole
from headrace.roles.weight_follower import WeightFollowerRole
from headrace.rollout.episodes import EpisodeRunner
from headrace.rollout.evaluation import Evaluation
from headrace.rollout.policy import PolicySettings
from headrace.rollout.rewards.model import ModelReward
from headrace.rollout.rewards.pool import RewardPool
from headrace.rollout.router import Router
from headrace.rollout.tokens import TextCodec
from headrace.runtime.protocol import Clock, Runtime
from headrace.runtime.signal import Signal
from headrace.store import RunStore
from headrace.training.scorer import FrozenRewardModel, FrozenScorer, HybridReference
from headrace.training.trainer import HFTrainer
from headrace.weights.plane import WeightPublisher
from headrace.weights.transport import open_transport
from headrace.weights.version import INITIAL, Lineage, Version

T = TypeVar("T")

_LEASED_BY_NOBODY = ("rollout", "schedule")
"""Stages that write columns, but lease no rows: they act through the flow."""
_LEASE_TERMS_PER_STALL = 1.5
"""A wait of the run ends before a lease that is held through it."""


@dataclass(frozen=True, slots=True)
class Models:
    """The two ends of the weight plane, each with weights of its own."""

    trainer: HFTrainer
    engine: EmbeddedEngine
    publisher: WeightPublisher
    critic: HFTrainer | None = None
    reference: FrozenScorer | None = None
    """None also where the actor's model is its own reference."""
    teacher: FrozenScorer | None = None
    proximal: FrozenScorer | None = None
    """None also where the actor computes the proximal log-probs itself."""
    refreshed: Saved | None = None
    """The reference as part of a checkpoint, if it changes."""
    reward: ModelReward | None = None
    judges: Mapping[str, EmbeddedEngine] = field(default_factory=dict)
    """See `load_judges`."""

    @property
    def saved(self) -> dict[str, Saved]:
        """What a checkpoint holds beside the trainer's state, by the name of its folder."""
        others: dict[str, Saved | None] = {"critic": self.critic, "reference": self.refreshed}
        return {name: other for name, other in others.items() if other is not None}


@dataclass(frozen=True, slots=True)
class Parts:
    """A run, ready to start."""

    branch: int
    """Of the versions that this process makes."""
    models: Models
    flow: Flow
    estimator: AdvantageEstimator
    recorder: Recorder
    checkpointer: Checkpointer
    rollout: RolloutRole
    filter: FilterRole
    scorers: tuple[ScorerRole | RewardRole, ...]
    stages: tuple[FunctionStageRole, ...]
    advantages: AdvantagesRole | None
    """None where the loss reads a teacher instead."""
    critic: CriticRole | None
    actor: ActorRole
    follower: WeightFollowerRole
    evaluator: EvaluatorRole | None


async def load_models(plan: Plan, runtime: Runtime, folder: Path) -> Models:
    """Load the model for both sides. The engine serves version 0 until it is updated."""
    config = plan.config
    device = resolve_device(config.model.device)

    algorithm, dtype = config.algorithm, getattr(torch, config.model.dtype)
    temperature = config.rollout.sampling.temperature

    def trainer() -> HFTrainer:
        made = HFTrainer(
            load_causal_lm(config.model.path, dtype=torch.float32, device=device),
            config=config.trainer,
            loss=PolicyObjective(algorithm, PolicyLoss(algorithm, plan.surrogate)),
            total_steps=plan.total_batches * algorithm.updates_per_batch,
            temperature=temperature,
            dtype=dtype,
            gradient_checkpointing=config.model.gradient_checkpointing,
            tokenizer=plan.tokenizer,
            seed=config.seed,
            between_layers=runtime.rebalance,
            outputs=EntropyOutputs(temperature) if algorithm.entropy else None,
        )
        if algorithm.needs_reference and config.reference.placement == "hybrid":
            made.keep_reference()
        return made

    def frozen(path: str) -> FrozenScorer:
        return FrozenScorer(load_causal_lm(path, dtype=dtype, device=device), temperature=temperature)

    def critic() -> HFTrainer:
        return HFTrainer(
            load_value_model(config.critic.model or config.model.path, dtype=torch.float32, device=device),
            config=config.critic,
            loss=ValueObjective(config.critic.clip),
            total_steps=plan.total_batches,
            dtype=dtype,
            gradient_checkpointing=config.model.gradient_checkpointing,
            tokenizer=plan.tokenizer,
            seed=config.seed,
            outputs=token_values,
        )

    async def load(make: Callable[[], T]) -> T:
        return await runtime.compute(TRAINER_LANE, make)

    models = Models(
        await load(trainer),
        await load_engine(plan, runtime),
        open_transport(config.weights, folder / "weights"),
        reward=await load_model_reward(plan, runtime),
        judges=await load_judges(plan, runtime),
    )
    if algorithm.needs_critic:
        models = replace(models, critic=await load(critic))
    if algorithm.needs_reference and config.reference.placement == "own":
        path = config.reference.model or config.model.path
        models = replace(models, reference=await load(lambda: frozen(path)))
    if algorithm.needs_reference and config.reference.refresh_every is not None:
        models = replace(models, refreshed=models.reference or HybridReference(models.trainer))
    if config.own_proximal:
        models = replace(models, proximal=await load(lambda: frozen(config.model.path)))
    if algorithm.needs_teacher:
        teacher = config.teacher.model
        assert teacher is not None
        models = replace(models, teacher=await load(lambda: frozen(teacher)))
    return models


def _scorers(
    context: RoleContext, plan: Plan, models: Models, published: Signal, committed: Version
) -> tuple[ScorerRole | RewardRole, ...]:
    """Those that the recipe has stages for."""
    config = plan.config
    scorers: list[ScorerRole | RewardRole] = []
    if models.reward is not None:
        scorers.append(RewardRole(context, models.reward))
    if models.proximal is not None:
        follows = FollowedWeights(
            context,
            models.publisher.receiver(),
            published,
            models.proximal.take,
            lane="proximal",
            loaded=0 if committed == INITIAL else None,
        )
        scorers.append(
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
        scorers.append(
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
        scorers.append(
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
        scorers.append(
            ScorerRole(
                context,
                name="critic.value",
                column="values",
                lane=CRITIC_LANE,
                score=models.critic.outputs,
                max_tokens=config.critic.max_tokens_per_microbatch,
            )
        )
    return tuple(scorers)


def connect(
    plan: Plan,
    models: Models,
    store: RunStore,
    runtime: Runtime,
    rewards: RewardPool,
    lineage: Lineage,
    committed: Version,
) -> Parts:
    """Build roles, table and schedule around the models. `committed`: the version that the run begins from."""
    config = plan.config
    rollout = config.rollout
    clock = runtime.clock
    eta, ahead = config.async_.staleness_bound, config.ahead
    table = ExperienceTable(
        [
            Consumer(stage.name, frozenset(stage.reads), "group" if stage.unit == "group" else "row")
            for stage in plan.recipe.stages
            if stage.name not in _LEASED_BY_NOBODY
        ],
        capacity=ahead + (eta + 2) * rollout.prompts_per_batch,
        lease_s=_LEASE_TERMS_PER_STALL * config.runtime.stall_timeout_s,
        clock=clock,
    )
    schedule = Schedule(
        prompts_per_batch=rollout.prompts_per_batch,
        max_staleness=eta,
        total_batches=plan.total_batches,
        on_deadline=config.deadline_rule,
        ahead=ahead,
        surplus=rollout.surplus,
    )
    source = PromptSource(
        plan.prompts,
        PromptOrder(len(plan.prompts), config.seed, config.data.shuffle),
        epochs=None if config.trainer.batches is not None else config.trainer.epochs,
        max_attempts=rollout.max_attempts,
        frontier=_frontier(store),
    )
    flow = Flow(
        schedule,
        table,
        source,
        store,
        runtime,
        max_drops_per_batch=rollout.most_drops,
        reward_column="reward" if models.reward is None else "scored",
    )
    waits, tally = WaitMeter(clock.now), Tally()
    estimator = AdvantageEstimator(config.algorithm, max_length=rollout.sampling.max_new_tokens, custom=plan.advantage)
    moves = config.algorithm.kl.target is not None
    recorder = Recorder(
        store,
        clock,
        models.engine,
        flow,
        tally,
        waits,
        branch=lineage.branch,
        kl_coefficient=lambda: estimator.state["kl_coefficient"] if moves else None,
    )
    context = RoleContext(runtime, flow, table, waits, recorder.event, config.runtime.stall_timeout_s)
    checkpointer = Checkpointer(
        store,
        models.trainer,
        runtime,
        others=models.saved,
        state=lambda: dict(estimator.state),
        every=config.checkpoint.every,
        committed=committed.number,
    )
    published = Signal()
    rule = config.deadline_rule
    algorithm = config.algorithm

    def loader(consumer: str, max_tokens: int, *, sealed: bool) -> StreamingLoader:
        return StreamingLoader(
            table,
            flow,
            consumer=consumer,
            max_tokens=max_tokens,
            streaming=config.async_.streaming and not sealed,
            timeout_s=config.runtime.stall_timeout_s,
        )

    objective = PolicyObjective(algorithm, PolicyLoss(algorithm, plan.surrogate))
    critic = None
    if models.critic is not None:
        budget = config.critic.max_tokens_per_microbatch
        critic = CriticRole(context, loader("critic.update", budget, sealed=False), models.critic)
    return Parts(
        branch=lineage.branch,
        models=models,
        flow=flow,
        estimator=estimator,
        recorder=recorder,
        checkpointer=checkpointer,
        rollout=RolloutRole(
            context,
            models.engine,
            episode_runner(plan, models.engine, clock, rewards, evaluation=False),
            tally,
            judges=tuple(models.judges.values()),
            counted=recorder.progress,
            min_samples=rollout.min_samples or min(2, rollout.samples_per_prompt),
        ),
        filter=FilterRole(context, plan.filters),
        scorers=_scorers(context, plan, models, published, committed),
        stages=_own_stages(context, plan),
        advantages=AdvantagesRole(
            context,
            estimator,
            reads=plan.recipe.stage("advantages").reads,
            whole_batch=algorithm.needs_whole_batch,
            extra=algorithm.advantage_reads,
        )
        if plan.recipe.has("advantages")
        else None,
        critic=critic,
        actor=ActorRole(
            context,
            loader(actor.NAME, config.trainer.max_tokens_per_microbatch, sealed=algorithm.seals_batch),
            models.trainer,
            models.publisher,
            published,
            lineage,
            StalenessRule(eta, masks=rule == "mask", allows_late=rule == "late"),
            columns=policy_columns(algorithm, own_proximal=config.own_proximal),
            max_tokens_per_microbatch=config.trainer.max_tokens_per_microbatch,
            sealed=SealedSteps(
                algorithm.updates_per_batch,
                recompute=algorithm.needs_proximal and not config.own_proximal,
                prepare=objective.prepare,
            )
            if algorithm.seals_batch
            else None,
            critic=critic,
            warm_up_batches=config.critic.warmup_batches if algorithm.needs_critic else 0,
            trained=checkpointer.trained,
            after_step=_after_step(recorder, checkpointer, lineage, _refresh(plan, models, runtime)),
        ),
        follower=WeightFollowerRole(
            context, models.engine, models.publisher.receiver(), published, SwapMode(config.async_.swap)
        ),
        evaluator=EvaluatorRole(
            context,
            models.engine,
            held_out_evaluation(plan, models.engine, clock, rewards, models.reward),
            recorder.evaluation,
            every=config.evaluation.every,
        )
        if plan.eval_prompts
        else None,
    )


def episode_runner(plan: Plan, engine: Engine, clock: Clock, rewards: RewardPool, *, evaluation: bool) -> EpisodeRunner:
    """The runner of training episodes, or that of evaluation."""
    config, sampling = plan.config, plan.config.rollout.sampling
    if evaluation:
        params = SamplingParams(
            max_new_tokens=config.evaluation.max_new_tokens or sampling.max_new_tokens,
            temperature=config.evaluation.temperature,
            stop_token_ids=plan.stop_token_ids,
        )
    else:
        params = SamplingParams(
            max_new_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            stop_token_ids=plan.stop_token_ids,
        )
    return EpisodeRunner(
        workflow=plan.workflow,
        policy=PolicySettings(
            router=Router([engine]),
            text=TextCodec(plan.tokenizer),
            sampling=params,
            seed=config.seed,
            clock=clock,
            request_timeout_s=config.rollout.episode_timeout_s,
            max_context=plan.max_context,
        ),
        rewards=rewards,
        group_rewards=rewards if config.reward.group else None,
        clock=clock,
        samples_per_prompt=1 if evaluation else config.rollout.samples_per_prompt,
        episode_timeout_s=config.rollout.episode_timeout_s,
    )


def held_out_evaluation(
    plan: Plan, engine: Engine, clock: Clock, rewards: RewardPool, model_reward: ModelReward | None
) -> Evaluation:
    """Of the plan's held-out prompts."""
    return Evaluation(
        engine,
        episode_runner(plan, engine, clock, rewards, evaluation=True),
        plan.eval_prompts,
        TextCodec(plan.tokenizer).decode,
        clock,
        concurrency=2 * plan.config.engine.max_concurrent_sequences,
        timeout_s=plan.config.evaluation.timeout_s,
        model_reward=model_reward,
    )


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


async def load_engine(plan: Plan, runtime: Runtime) -> EmbeddedEngine:
    """The engine with weights of its own, not started."""
    config = plan.config
    dtype = getattr(torch, config.engine.dtype or config.model.dtype)
    device = resolve_device(config.model.device)
    model = await runtime.compute(TRAINER_LANE, lambda: load_causal_lm(config.model.path, dtype=dtype, device=device))
    return EmbeddedEngine(model, config=config.engine, runtime=runtime)


def _after_step(
    recorder: Recorder, checkpointer: Checkpointer, lineage: Lineage, refresh: Callable[[int], Awaitable[None]]
) -> Callable[[TrainedStep], Awaitable[None]]:
    async def after_step(step: TrainedStep) -> None:
        recorder.batch(step)
        await refresh(step.batch + 1)
        await checkpointer.after(Version(lineage.branch, step.batch + 1))

    return after_step


def _refresh(plan: Plan, models: Models, runtime: Runtime) -> Callable[[int], Awaitable[None]]:
    """Called with the number of each version that was published: makes every n-th the reference."""
    every = plan.config.reference.refresh_every
    receiver, own = models.publisher.receiver(), models.reference

    async def refresh(number: int) -> None:
        if models.refreshed is None or every is None or number % every:
            return
        if own is None:
            await runtime.compute(TRAINER_LANE, models.trainer.keep_reference)
        else:
            await runtime.compute("reference", lambda: own.take(receiver.receive()[1]))

    return refresh


def _own_stages(context: RoleContext, plan: Plan) -> tuple[FunctionStageRole, ...]:
    return tuple(
        FunctionStageRole(
            context,
            function,
            name=stage.name,
            reads=stage.reads,
            writes=stage.writes,
            by_group=stage.unit == "group",
        )
        for stage, function in zip(plan.config.algorithm.stages, plan.stages, strict=True)
    )


def _frontier(store: RunStore) -> tuple[int, int] | None:
    """First (epoch, position) that was never issued."""
    last = store.ledger.frontier()
    return None if last is None else (last[0], last[1] + 1)
