"""Models in training as workers: `training/group.py` is how they are spoken to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch

from headrace.algorithms.kl_controllers import TakenCoefficient
from headrace.algorithms.policy_loss import PolicyLoss
from headrace.config.layout import LayoutConfig
from headrace.config.train import TrainConfig
from headrace.engines.embedded.cache_plan import context_limit
from headrace.models.device_lanes import lanes_on
from headrace.models.experts import experts_per_token
from headrace.models.file_weights import FileWeights
from headrace.models.loading import load_causal_lm, load_tokenizer, load_value_model
from headrace.models.skeleton import causal_lm_skeleton, value_model_skeleton
from headrace.models.values import token_values
from headrace.runtime.inline import ThreadPlacement
from headrace.runtime.process.memory_here import MemoryHere
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Host
from headrace.training.frozen import HybridReference
from headrace.training.layouts.ranks import layout_of
from headrace.training.objective import PolicyObjective, PolicyOutputs, ValueObjective, output_columns
from headrace.training.optimizer.whole_weights import WholeWeights
from headrace.training.outgoing_weights import OutgoingWeights
from headrace.training.own_functions import load_pieces
from headrace.training.rank import TRAINER_TYPES, TrainerRank
from headrace.training.rank_device import rank_device
from headrace.training.rank_task import policy_task, value_task
from headrace.training.taking import scored
from headrace.training.trainer import HFTrainer
from headrace.weights.in_process import MemoryPublisher
from headrace.weights.plane import WeightPublisher
from headrace.weights.swap_check import SHORT, SwapCheck, check_tokens, make_check
from headrace.weights.transport import IN_MEMORY, Transport, of_this_life, open_transport

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class TrainerSpec:
    """From which a rank of a trainer group builds itself."""

    config: TrainConfig
    weights: str
    """Folder of the model, in Hugging Face format."""
    device: str
    total_steps: int
    """Optimiser steps of the run."""
    records_entropy: bool
    transport: Transport
    """By which its weights leave."""
    folder: str
    """Of that transport, if it needs one."""
    aside: str | None = None
    """A folder in memory, for a version that one receiver in another process takes; None: it is in this one."""


class TrainerWorker(TrainerRank):
    """The policy's."""

    kind: ClassVar[str] = "trainer"
    types: ClassVar[WireTypes] = TRAINER_TYPES.with_types(
        WireTypes({"train_config": TrainConfig, "trainer_spec": TrainerSpec})
    )

    def __init__(self, spec: TrainerSpec, host: Host) -> None:
        """Loads the model. Raises ConfigError."""
        _use_threads(host)
        config, algorithm = spec.config, spec.config.algorithm
        sampling, pieces = config.rollout.sampling, load_pieces(config)
        columns = output_columns(algorithm, truncated=config.truncates, record_entropy=spec.records_entropy)
        coefficient = TakenCoefficient(algorithm.kl.coefficient)
        model, weights, source = _policy(spec, host)
        loss = PolicyLoss(algorithm, pieces, coefficient, max_length=sampling.max_new_tokens)
        trainer = HFTrainer(
            model,
            config=config.trainer,
            loss=PolicyObjective(algorithm, loss, pieces, columns),
            total_steps=spec.total_steps,
            temperature=sampling.temperature,
            dtype=getattr(torch, config.model.dtype),
            gradient_checkpointing=config.model.gradient_checkpointing,
            tokenizer=cache(partial(load_tokenizer, config.model.path)),
            seed=config.seed,
            between_layers=host.rebalance,
            outputs=PolicyOutputs(columns, sampling.temperature),
            in_order=config.async_.in_order,
            layout=layout_of(config.trainer.layout),
            weights=weights,
            source=source,
        )
        if algorithm.needs_reference and config.reference.placement == "hybrid":
            trainer.keep_reference()
        replica, place = layout_of(config.trainer.layout).within(host.rank)
        leaves = place == 0  # what others have of them goes the same way
        out = MemoryHere(spec.folder) if leaves and spec.transport in IN_MEMORY else None
        aside = MemoryHere(spec.aside) if leaves and spec.aside is not None else None
        self._memory = out, aside
        super().__init__(
            trainer,
            host,
            policy_task(trainer, host.refs, algorithm, own_proximal=config.own_proximal),
            weights=OutgoingWeights(
                trainer,
                host,
                plane=_plane(spec, out, replica) if leaves else None,
                aside=_aside(aside, replica),
                check=_check(spec, trainer),
                by_parts=layout_of(config.trainer.layout).joint,
                deltas=config.weights.deltas is not False,
            ),
            coefficient=coefficient,
            reference=HybridReference(trainer),
            device=rank_device(spec.device, host.rank),
        )

    @classmethod
    def lanes(cls, spec: TrainerSpec, host: Host) -> ThreadPlacement | None:
        """See `headrace.runtime.workers`."""
        return _lanes(spec, host, cls.kind)


class CriticWorker(TrainerRank):
    """The critic's: its weights leave for nobody."""

    kind: ClassVar[str] = "critic"
    types: ClassVar[WireTypes] = TrainerWorker.types

    def __init__(self, spec: TrainerSpec, host: Host) -> None:
        """Loads the model. Raises ConfigError."""
        _use_threads(host)
        config, algorithm = spec.config, spec.config.algorithm
        layout = config.critic.layout
        device = rank_device(spec.device, host.rank)
        found = value_model_skeleton(spec.weights, device) if _reads_parts(config, layout, device) else None
        model, source = found or (load_value_model(spec.weights, dtype=torch.float32, device=device), None)
        trainer = HFTrainer(
            model,
            config=config.critic,
            loss=ValueObjective(config.critic.clip, load_pieces(config).value_loss),
            total_steps=spec.total_steps,
            dtype=getattr(torch, config.model.dtype),
            gradient_checkpointing=config.model.gradient_checkpointing,
            tokenizer=cache(partial(load_tokenizer, config.model.path)),
            seed=config.seed,
            outputs=token_values,
            in_order=config.async_.in_order,
            layout=layout_of(config.critic.layout),
            source=source,
        )
        super().__init__(trainer, host, value_task(trainer, host.refs, algorithm), device=device)

    @classmethod
    def lanes(cls, spec: TrainerSpec, host: Host) -> ThreadPlacement | None:
        """See `headrace.runtime.workers`."""
        return _lanes(spec, host, cls.kind)


def _policy(spec: TrainerSpec, host: Host) -> tuple[PreTrainedModel, type[WholeWeights], FileWeights | None]:
    """The model, the class of its weights, and where these are to be read, if the model has none."""
    trainer = spec.config.trainer
    device = rank_device(spec.device, host.rank)
    if trainer.backend == "hugging_face" and _reads_parts(spec.config, trainer.layout, device):
        found = causal_lm_skeleton(spec.weights, device)
        if found is not None:
            return found[0], WholeWeights, found[1]
    model = load_causal_lm(spec.weights, dtype=torch.float32, device=device)
    if trainer.backend == "hugging_face":
        return model, WholeWeights, None
    from headrace.training.megatron.language_model import MegatronLM
    from headrace.training.megatron.weights import MegatronWeights

    # It is called as the other is.
    return cast("PreTrainedModel", MegatronLM(model)), MegatronWeights, None


def _reads_parts(config: TrainConfig, layout: LayoutConfig, device: torch.device) -> bool:
    """Whether a rank reads its own part of the model alone. Where sums are to be in one order on a device, that is
    tried with the whole."""
    return layout_of(layout).joint and not (device.type == "cuda" and config.async_.in_order)


def _lanes(spec: TrainerSpec, host: Host, kind: str) -> ThreadPlacement | None:
    in_order = spec.config.async_.in_order
    return lanes_on(rank_device(spec.device, host.rank), kind, host.threads, in_order=in_order)


def _use_threads(host: Host) -> None:
    if host.threads is not None:
        torch.set_num_threads(host.threads)


def _check(spec: TrainerSpec, trainer: HFTrainer) -> Callable[[], SwapCheck] | None:
    """Makes the swap check of the present weights; None where engines take them as they are."""
    config = spec.config
    dtype = config.model.dtype
    temperature = 1.0 if config.engine.has_server else config.rollout.sampling.temperature
    """Servers score prompts at temperature 1."""
    if spec.transport == "memory" and (config.engine.dtype or dtype) == dtype:
        return None
    text = trainer.model.config.get_text_config()
    longest = SHORT
    if config.engine.has_server:
        longest = context_limit(trainer.model.config, config.engine) - 1  # behind it one is sampled
    tokens = check_tokens(int(text.vocab_size), longest)
    score = partial(scored, partial(trainer.logprobs, temperature=temperature))
    how: dict[str, Any] = {"routed": trainer.routed}
    if config.engine.has_server:  # which cannot be told where to route
        how = {"routers_choose": experts_per_token(trainer.model.config) > 0}
    return lambda: make_check(tokens, score, temperature=temperature, dtype=dtype, **how)


def _plane(spec: TrainerSpec, memory: MemoryHere | None, replica: int) -> WeightPublisher:
    folder = Path(spec.folder) if memory is None else of_this_life(spec.transport, _of_replica(memory, replica))
    return open_transport(spec.transport, folder, torch.device(spec.device))


def _aside(memory: MemoryHere | None, replica: int) -> Callable[[], WeightPublisher]:
    if memory is None:
        return MemoryPublisher
    publisher = open_transport("shm", of_this_life("shm", _of_replica(memory, replica)))
    return lambda: publisher


def _of_replica(memory: MemoryHere, replica: int) -> Path:
    """The first one's weights leave, and while it is absent another's."""
    folder = memory.folder / f"replica-{replica}" if replica else memory.folder
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
