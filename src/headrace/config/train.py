"""The config of `headrace train`."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from headrace.config.algorithm import BY_GROUP, AlgorithmConfig
from headrace.config.base import Section
from headrace.config.cluster import ClusterConfig
from headrace.config.data import DataConfig, sources_of
from headrace.config.evaluation import PLAIN, BestBy, EvaluationConfig, EvaluationSetConfig, HeldOut, best_by
from headrace.config.filters import FilterConfig
from headrace.config.gateway import GatewayConfig
from headrace.config.model import ModelConfig, PolicyEngineConfig, is_here
from headrace.config.origin import FromConfig
from headrace.config.parts_fit import check_parts
from headrace.config.places import apart_with_ray, check_places
from headrace.config.record import CheckpointConfig, RecordConfig
from headrace.config.reward import RewardConfig
from headrace.config.roles import CriticConfig, FunctionsConfig, ProximalConfig, ReferenceConfig, TeacherConfig
from headrace.config.rollout import TOP_K_OF_TOP_P, AsyncConfig, OnDeadline, RolloutConfig
from headrace.config.runtime import RuntimeConfig
from headrace.config.track import TrackerConfig, TrackerSection, each_once, sections
from headrace.config.trainer import TrainerConfig
from headrace.config.weights import WeightsConfig


class TrainConfig(Section):
    model: ModelConfig
    data: DataConfig
    from_: FromConfig = Field(default=FromConfig(), alias="from")
    reward: RewardConfig = RewardConfig()
    rollout: RolloutConfig = RolloutConfig()
    gateway: GatewayConfig = GatewayConfig()
    async_: AsyncConfig = Field(default=AsyncConfig(), alias="async")
    algorithm: AlgorithmConfig = AlgorithmConfig()
    trainer: TrainerConfig = TrainerConfig()
    reference: ReferenceConfig = ReferenceConfig()
    functions: FunctionsConfig = FunctionsConfig()
    proximal: ProximalConfig = ProximalConfig()
    teacher: TeacherConfig = TeacherConfig()
    critic: CriticConfig = CriticConfig()
    engine: PolicyEngineConfig = PolicyEngineConfig()
    weights: WeightsConfig = WeightsConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    record: RecordConfig = RecordConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    runtime: RuntimeConfig = RuntimeConfig()
    cluster: ClusterConfig = ClusterConfig()
    track: Annotated[tuple[TrackerConfig, ...], AfterValidator(each_once)] = ()
    """Where metrics go beside the run's own record: `tensorboard`, `wandb`, `mlflow`, `trackio`, `csv`, or one of them
    with settings, as `{type: wandb, project: p}`. See docs/tracking.md."""
    rollouts_only: bool = False
    """Generate and record groups, and train nothing: `trainer.batches` of them, with `record.journal: all`. A later run
    trains on them by `data.rollouts`. `headrace train --rollouts-only` sets it. See docs/replay.md."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Of the order of the data and, in training, of the sampling noise."""

    @property
    def trackers(self) -> tuple[TrackerSection, ...]:
        """`track`, each with its settings."""
        return sections(self.track)

    @property
    def keeps_journal(self) -> bool:
        """Whether every finished group stays on disk."""
        return self.rollouts_only or self.record.journal == "all"

    @property
    def deadline_rule(self) -> OnDeadline:
        """`async.on_deadline`, or what it is unless given."""
        if self.async_.on_deadline is not None:
            return self.async_.on_deadline
        if self.rollout.surplus:
            return "drop"
        return "wait"

    @property
    def filters(self) -> tuple[FilterConfig, ...]:
        """`rollout.filters`, or what it is unless given."""
        if self.rollout.filters is not None:
            return self.rollout.filters
        compares = self.algorithm.advantage in BY_GROUP and not self._tells_equal_rewards_apart
        return ("zero_spread",) if compares else ()

    @property
    def _tells_equal_rewards_apart(self) -> bool:
        """Whether samples of one reward may have advantages that differ, by what is meant to teach them without it. The
        overlong penalty is left to a filter by reward, as in DAPO (arXiv 2503.14476, section 3.2)."""
        shaping, kl = self.algorithm.shaping, self.algorithm.kl
        in_reward = kl.place == "reward" and kl.coefficient > 0
        return bool(shaping.length_weight) or shaping.function is not None or in_reward

    @property
    def clients_sample(self) -> bool:
        """Whether agents' requests say how they are sampled."""
        return self.gateway.sampling == "client"

    @property
    def truncates(self) -> bool:
        """Whether tokens that are trained may be sampled from a distribution cut by top-k or top-p."""
        return self.rollout.sampling.truncates or self.clients_sample

    @property
    def most_kept(self) -> int:
        """Ids that the kept set of a token has at most; 0: any number."""
        sampling = self.rollout.sampling
        if not self.clients_sample or (sampling.truncates and sampling.top_k == 0):
            return sampling.top_k
        return max(sampling.top_k, TOP_K_OF_TOP_P)

    @property
    def held_out(self) -> tuple[HeldOut, ...]:
        """The sets that are evaluated: that of `data.eval`, then those with names of their own. None where nothing is
        trained."""
        if self.rollouts_only:
            return ()
        sets = {} if self.data.eval is None else {PLAIN: EvaluationSetConfig(data=self.data.eval)}
        return tuple(self._held_out(name, each) for name, each in (sets | self.evaluation.sets).items())

    def _held_out(self, name: str, given: EvaluationSetConfig) -> HeldOut:
        usual = self.evaluation
        values = {
            key: getattr(usual, key) if (own := getattr(given, key)) is None else own
            for key in ("every", "samples", "temperature", "max_prompts", "timeout_s", "metrics", "pass_at")
        }
        return HeldOut(
            name=name,
            source=sources_of(given.data)[0],
            prompt_column=given.prompt_column or self.data.prompt_column,
            max_new_tokens=given.max_new_tokens or usual.max_new_tokens or self.rollout.sampling.max_new_tokens,
            reward=given.reward or self.reward,
            own_reward=given.reward is not None,
            **values,
        )

    @property
    def best_by(self) -> BestBy | None:
        """What the best checkpoint is found by; None if none is kept. Raises ValueError."""
        if self.checkpoint.keep_best is None:
            return None
        return best_by(self.checkpoint.keep_best, self.held_out, highest=self.checkpoint.best_is == "highest")

    @property
    def rewards(self) -> tuple[RewardConfig, ...]:
        """Training's, and those of held-out sets that are others."""
        return (self.reward, *(each.reward for each in self.held_out if each.own_reward))

    @property
    def own_proximal(self) -> bool:
        """Whether the proximal policy's log-probs come by a stage of their own."""
        return self.algorithm.kl_of_proximal or (self.algorithm.needs_proximal and self.proximal.placement != "hybrid")

    @property
    def copies_proximal(self) -> bool:
        """Whether a copy of the policy on a lane of its own computes them."""
        return self.own_proximal and self.proximal.placement != "hybrid"

    @property
    def seals_critic(self) -> bool:
        """Whether the critic waits for the sealed batch, for its several steps on it."""
        return self.algorithm.epochs_per_batch * self.critic.updates_per_batch > 1

    @property
    def transport(self) -> Literal["memory", "shm", "cuda_ipc", "disk"]:
        """How weights are published: `weights.transport`, or what it is unless given, which on a CUDA device may be
        `cuda_ipc` instead of `shm`. What goes on by gloo or over relays is published in shared memory."""
        given = self.weights.transport
        if given == "gloo" or given == "collective":
            return "shm"
        return given or ("shm" if self.followers_in_processes else "memory")

    @property
    def sends_weights(self) -> bool:
        """Whether servers are sent weights by gloo."""
        return self.weights.transport == "gloo"

    @property
    def relays(self) -> int:
        """How many of those that take weights have a relay of their own because `collective` was asked for."""
        if self.weights.transport != "collective":
            return 0
        engines = self.engine.total + self.engine.lent if self.engine.apart else 0
        own = self.copies_proximal and self.proximal.placement == "process"
        return engines + (self.proximal.layout.ranks if own else 0)

    @property
    def servers_beyond(self) -> tuple[str, ...]:
        """Addresses of servers that are not on loopback."""
        return tuple(url for section in self.engine.sections for url in section.urls if not is_here(url))

    @property
    def followers_in_processes(self) -> tuple[str, ...]:
        """The keys by which somebody who takes new weights is in another process than who makes them."""
        keys = {
            ("engine.process is true" if self.engine.process else "an engine is a server"): self.engine.apart,
            "proximal.placement is process": self.copies_proximal and self.proximal.placement == "process",
            "trainer.placement is process": "trainer" in self.trainer_processes,
        }
        return tuple(key for key, holds in keys.items() if holds)

    @model_validator(mode="before")
    @classmethod
    def _apart_with_ray(cls, given: Any) -> Any:
        return apart_with_ray(given)

    @model_validator(mode="after")
    def _parts_go_together(self) -> Self:
        check_places(self)
        check_parts(self)
        return self

    @property
    def trainer_processes(self) -> tuple[str, ...]:
        """Sections of models that are trained in processes of their own."""
        if self.rollouts_only:
            return ()
        places = {
            "trainer": self.trainer.placement == "process",
            "critic": self.algorithm.needs_critic and self.critic.placement == "process",
        }
        return tuple(name for name, holds in places.items() if holds)

    @property
    def scorer_processes(self) -> tuple[str, ...]:
        """Stages of models that score in processes of their own."""
        algorithm, reward, trains = self.algorithm, self.reward.model, not self.rollouts_only
        places = {
            "reward": reward.path is not None and reward.placement == "process",
            "reference": trains and algorithm.needs_reference and self.reference.placement == "process",
            "proximal": trains and self.copies_proximal and self.proximal.placement == "process",
            "teacher": trains and algorithm.needs_teacher and self.teacher.placement == "process",
        }
        return tuple(name for name, holds in places.items() if holds)

    @property
    def functions_process(self) -> bool:
        """Whether the user's functions and advantages of tokens have a process of their own."""
        return self.functions.placement == "process" and self.algorithm.calls_functions and not self.rollouts_only

    def ahead(self, slots: int) -> int:
        """`async.ahead`, or what it is unless given. `slots`: sequences that all engines of the policy decode at once.

        The default is of use up to the point where a batch waits and every slot is taken; what is started beyond only
        grows old. Below two batches, groups that take long would leave none to begin the next batch with.
        """
        if self.async_.ahead is not None:
            return self.async_.ahead
        batch = self.rollout.prompts_per_batch
        full = batch + math.ceil(slots / self.rollout.samples_per_prompt)
        if self.rollouts_only:  # no version comes that anything could be too old for
            return max(2 * batch, full)
        bound = (self.async_.staleness_bound + 1) * batch
        return min(bound, max(2 * batch, full)) + self.rollout.surplus

    def table_groups(self, ahead: int) -> int:
        """Groups that the experience table has places for. `ahead`: that may run or wait for a batch."""
        return ahead + (self.async_.staleness_bound + 2) * self.rollout.prompts_per_batch
