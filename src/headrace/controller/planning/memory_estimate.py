"""How much memory a run will take, worked out from shapes alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from headrace.algorithms.kept_sets import most_bytes
from headrace.config import ConfigError, TrainConfig
from headrace.config.layout import LayoutConfig
from headrace.config.roles import CriticConfig
from headrace.config.trainer import TrainerConfig
from headrace.config.values.dtypes import ITEM_BYTES
from headrace.config.values.hosts import is_loopback
from headrace.controller.planning import free_memory
from headrace.controller.planning.activations import (
    DecoderShape,
    engine_bytes,
    graphs_bytes,
    passes_bytes,
    scored_bytes,
)
from headrace.controller.planning.cache_memory import (
    KV_CACHE,
    MOST_TOLD,
    as_many_as_first,
    cache_beside,
    cache_of,
    caches_bytes,
    engine_dtype,
    plan_kv_cache,
)
from headrace.controller.planning.engine_memory import engine_uses
from headrace.controller.planning.free_memory import SPARE, in_gib, pinned
from headrace.controller.planning.judges import own_judges
from headrace.controller.planning.memory_by_turns import OF_LENT, by_turns, keeps_reference
from headrace.controller.planning.out_of_memory import what_to_lower
from headrace.controller.planning.planned_model import PlannedModel, planned_models
from headrace.controller.planning.product_workspaces import WORKSPACES, workspaces_of_run
from headrace.controller.planning.role_devices import is_elsewhere, policy_role
from headrace.controller.planning.run_processes import NO_PROCESSES, RunProcesses, check_room
from headrace.controller.planning.table_size import most_sampled, table_bytes
from headrace.controller.planning.trained_memory import (
    gathered,
    hybrid_bytes_of,
    kept_dtype,
    scored_bytes_of,
    trained_bytes_of,
    trainer_uses,
)
from headrace.controller.planning.transports import transport_of
from headrace.engines.embedded.cache_plan import CachePlan, context_limit
from headrace.models.experts import routed_bytes
from headrace.models.loading import count_parameters, read_model_config

_PLANE = "weight plane: newest version, and the next"
_LEAVING = "weight plane: the copy that leaves"
_AT_RELAYS = "weight plane: two versions at each relay"
_SENT = "weight plane: what ranks on other machines sent last, at most"
_COPY = "checkpoint: copy while it is written"
_BEGUN = "trainer: what a batch began with, for a replica that is made anew"
_STATE_TENSORS = 3
"""Of a parameter: its float32 master, and two moments."""
_HOST = "this host"
_PROCESSES = "processes: Python and what all import"
_OF_ENGINE = ("engine: ",)
_OF_TRAINING = (
    "trainer: ",
    "critic: ",
    "reference: ",
    "proximal: ",
    "teacher: ",
    "weight plane: ",
    "engine: next version",
    "engine: swap check",
    "checkpoint: ",
)
"""How uses begin that a run without an engine, and one without a trainer, does not have."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes by use. For the CPU without activations, which follow `trainer.max_tokens_per_microbatch`."""

    parameters: int
    """Number of parameters, not bytes."""
    uses: dict[str, int]
    place: str
    """Whose memory it is: `this host`, or a device."""
    free: int | None
    """There, now; None where nobody here can ask, as about a device of a cluster that is joined."""
    cache: CachePlan
    """Of each of the policy's engines of the first section; see `cache_of`."""
    on_host: Mapping[str, int]
    """Beside it, if the place is a device: of this host's memory."""
    slots: int = 1
    """Sequences that the engines will decode together."""
    turns: Mapping[str, int] = field(default_factory=dict)
    """Bytes in each turn, where engines and trainer take turns."""

    @property
    def on_device(self) -> bool:
        return self.place != _HOST

    @property
    def published(self) -> int:
        """Of two versions of the weights where whoever takes them gets them from; 0 if nobody publishes. Those at
        relays come beside them."""
        return self.uses.get(_PLANE, self.on_host.get(_PLANE, 0))

    @property
    def at_relays(self) -> int:
        """Of the versions that relays keep in memory that processes share."""
        return self.uses.get(_AT_RELAYS, self.on_host.get(_AT_RELAYS, 0))

    @property
    def total(self) -> int:
        return sum(self.uses.values())

    @property
    def needed(self) -> int:
        """At once."""
        return max(self.turns.values(), default=self.total)


def estimate_memory(
    config: TrainConfig,
    model_config: Any,
    device: torch.device,
    *,
    engine: bool = True,
    trainer: bool = True,
    processes: RunProcesses = NO_PROCESSES,
) -> MemoryEstimate:
    """`model_config`: a Hugging Face config. `engine` and `trainer`: whether there is one. `processes`: of the run, on
    this host. Builds the model on no device, and loads nothing.

    Raises ConfigError if the processes or the KV cache do not fit; for a device, if anything does not.
    """
    check_room(processes, free_memory.free_bytes(torch.device("cpu")))
    models, elsewhere = planned_models(config, model_config), is_elsewhere(config, policy_role(config))
    free = None if elsewhere else free_memory.free_bytes(device)
    parameters = models["trainer"].parameters
    uses = _fixed(config, models, device)
    uses |= {} if device.type == "cpu" else _activations(config, models, device)
    left_out = (*(() if engine else _OF_ENGINE), *(() if trainer else _OF_TRAINING))
    uses = {use: size for use, size in uses.items() if not use.startswith(left_out)}
    if config.engine.colocated:  # what it has is dropped before
        uses.pop("engine: next version while it is received", None)
    if device.type != "cpu" and (engine or trainer):
        uses[WORKSPACES] = workspaces_of_run(config, uses)
    if not engine:
        cache = CachePlan(slots=1, max_context=context_limit(model_config, config.engine), bytes_wanted=0)
    elif device.type == "cpu" or free is None:
        share, unknown = as_many_as_first(config), elsewhere or is_elsewhere(config, "engine")
        cache = plan_kv_cache(model_config, config.engine, engine_dtype(config), device, share, elsewhere=unknown)
    else:
        cache = cache_beside(config, model_config, device, free, uses)
    kept: dict[str, int] = _off_device(config, models, device) if trainer else {}
    if engine and not trainer and not config.engine.apart:
        kept["weight plane: version 0, on the host"] = ITEM_BYTES[engine_dtype(config)] * parameters
        uses |= kept if device.type == "cpu" else {}
    if processes.count:
        (uses if device.type == "cpu" else kept)[f"{_PROCESSES} ({processes.count})"] = processes.size
    if engine:
        uses[KV_CACHE] = caches_bytes(config, cache)
        uses |= {f"{OF_LENT}KV cache": config.engine.lent * cache.bytes_wanted} if config.engine.lent else {}
    slots = _slots(config, cache) if engine else 1
    table = _table(config, model_config, cache)
    if engine and trainer and config.relays:
        table[_AT_RELAYS] = config.relays * 2 * ITEM_BYTES[config.model.dtype] * parameters
    if trainer and (sent := _sent(config, parameters)):
        (uses if device.type == "cpu" else kept)[_SENT] = sent
    if trainer and (config.checkpoint.background or keeps_reference(config)):
        (uses if device.type == "cpu" else kept)[_COPY] = _copied(config, models, device)
    if trainer and (begun := _begun(config, models)):
        (uses if device.type == "cpu" else kept)[_BEGUN] = begun
    if device.type == "cpu":
        uses |= table
        turns = by_turns(config, uses, on_device=False)
        return MemoryEstimate(parameters, uses, _HOST, free, cache, {}, slots, turns)
    turns = by_turns(config, uses, on_device=True)
    if free is not None:
        for turn, size in turns.items():
            _require_room(config, str(device), free, uses, turn, size)
    if turns:
        kept |= _asleep(config, models, device)
    if trainer and transport_of(config, device) == "shm":
        kept[_PLANE] = 2 * ITEM_BYTES[config.model.dtype] * parameters
    return MemoryEstimate(parameters, uses, str(device), free, cache, table | kept, slots, turns)


def _trained(config: TrainConfig) -> dict[str, TrainerConfig | CriticConfig]:
    """The sections of those that learn, by the names of their models."""
    return {"trainer": config.trainer} | ({"critic": config.critic} if config.algorithm.needs_critic else {})


def _begun(config: TrainConfig, models: Mapping[str, PlannedModel]) -> int:
    """Masters and moments of replicas of those that make several steps on a batch, once more."""
    updates = {"trainer": config.algorithm.updates_per_batch, "critic": config.critic.updates_per_batch}
    several = {
        name: own.layout.model_replicas
        for name, own in _trained(config).items()
        if own.layout.model_replicas > 1 and config.algorithm.epochs_per_batch * updates[name] > 1
    }
    return sum(_STATE_TENSORS * ITEM_BYTES["float32"] * models[name].parameters * n for name, n in several.items())


def _sent(config: TrainConfig, parameters: int) -> int:
    """What ranks that have cut the model up keep of the version that they sent last, where all but the first of a
    replica are on other machines."""
    layout, weights = config.trainer.layout, config.weights
    ranks = layout.ranks // layout.model_replicas
    if not layout.stage or weights.deltas is False or is_loopback(weights.host):
        return 0
    return ITEM_BYTES[config.model.dtype] * parameters * (ranks - 1) // ranks


def _table(config: TrainConfig, model_config: Any, cache: CachePlan) -> dict[str, int]:
    """What of the experience table is worth telling; it is in the host's memory."""
    found: dict[str, int] = {}
    if config.truncates:
        of_set = most_bytes(int(model_config.get_text_config().vocab_size), config.most_kept)
        most = _in_table(config, cache, most_sampled(config, cache.max_context) * of_set)
        found["experience table: kept sets, at most"] = most
    if config.algorithm.router_replay:
        most = _in_table(config, cache, cache.max_context * routed_bytes(model_config))
        found["experience table: experts that tokens were routed to, at most"] = most
    return found


def _fixed(config: TrainConfig, models: Mapping[str, PlannedModel], device: torch.device) -> dict[str, int]:
    """Weights and what goes with them, and the judges' caches."""
    trainer_bytes, engine_itemsize = ITEM_BYTES[config.model.dtype], ITEM_BYTES[engine_dtype(config)]
    policy = models["trainer"]
    parameters = policy.parameters
    of_engine = engine_itemsize * (parameters + _laid_out_anew(policy.config))
    engine_weights = config.engine.total * of_engine
    layout = config.trainer.layout
    uses = {
        **trainer_uses(config.trainer, policy, config.model.dtype, device),
        "engine: weights": engine_weights,
        "engine: next version while it is received": engine_weights,
        f"{OF_LENT}weights": config.engine.lent * of_engine,
    }
    transport = transport_of(config, device)
    if transport in ("memory", "cuda_ipc") or (transport == "shm" and device.type == "cpu"):
        uses[_PLANE] = 2 * trainer_bytes * parameters
    elif not layout.stage:  # ranks that cut it up write it where it leaves from as it is
        uses[_LEAVING] = trainer_bytes * parameters
    algorithm = config.algorithm

    def scores(name: str, layout: LayoutConfig) -> None:
        uses[f"{name}: weights"] = scored_bytes_of(layout, models[name], config.model.dtype, device)
        if layout.stage:
            uses[f"{name}: weights gathered for a pass"] = trainer_bytes * gathered(layout, models[name], device)

    if keeps_reference(config):
        uses["reference: weights"], _ = hybrid_bytes_of(config.trainer, policy, config.model.dtype, device)
    elif algorithm.needs_reference:
        scores("reference", config.reference.layout)
    if config.copies_proximal:
        scores("proximal", config.proximal.layout)
    if algorithm.needs_teacher:
        scores("teacher", config.teacher.layout)
    if algorithm.needs_critic:
        of_critic, critic = config.critic.layout, models["critic"]
        trained = trained_bytes_of(config.critic, critic, config.model.dtype, device)
        uses["critic: weights, gradients and moments (float32)"] = trained.total
        if config.model.dtype == "bfloat16" and not of_critic.stage:
            uses["critic: bfloat16 weights"] = of_critic.model_replicas * trainer_bytes * critic.parameters
        if of_critic.stage:
            uses["critic: weights gathered for a pass"] = trainer_bytes * gathered(of_critic, critic, device)
    if config.reward.model.path is not None:
        scores("reward model", config.reward.model.layout)
    for judge in own_judges(config.rewards):
        asked, dtype = read_model_config(judge.path), judge.engine.dtype or config.model.dtype
        uses[f"judge {judge.path}: weights"] = ITEM_BYTES[dtype] * (count_parameters(asked) + _laid_out_anew(asked))
        unknown = is_elsewhere(config, "judge") or is_elsewhere(config, policy_role(config))
        cache = plan_kv_cache(asked, judge.engine, dtype, device, elsewhere=unknown)
        uses[f"judge {judge.path}: KV cache"] = cache.bytes_wanted
    return {use: size for use, size in uses.items() if size}


def _laid_out_anew(model_config: Any) -> int:
    """Numbers of the output layer that an engine has beside the model's own: where that is its embedding."""
    text = model_config.get_text_config()
    return text.vocab_size * text.hidden_size if model_config.tie_word_embeddings else 0


def _off_device(config: TrainConfig, models: Mapping[str, PlannedModel], device: torch.device) -> dict[str, int]:
    """What models in training have in the host's memory, beside a device. Raises ConfigError if it has not so much."""
    found = {
        f"{name}: float32 weights, moments": trained_bytes_of(own, models[name], config.model.dtype, device).off_device
        for name, own in _trained(config).items()
    }
    if keeps_reference(config):
        _, found["reference: weights"] = hybrid_bytes_of(config.trainer, models["trainer"], config.model.dtype, device)
    wanted, free = sum(found.values()), free_memory.free_bytes(torch.device("cpu"))
    if wanted > free:
        raise ConfigError(
            f"optimizer.offload needs {in_gib(wanted)} of this host's memory, and {in_gib(free)} are free; leave it "
            "out, free memory, or take a smaller model"
        )
    return {use: size for use, size in found.items() if size}


def _copied(config: TrainConfig, models: Mapping[str, PlannedModel], device: torch.device) -> int:
    """What a checkpoint holds, all ranks' parts together, in the host's memory; beside a device tensor by tensor in
    pinned memory, of which torch takes powers of two. Raises ConfigError if that, beside a device, has not so much."""
    trained = [numbers for name in _trained(config) for numbers in models[name].sizes]
    taken = pinned if device.type != "cpu" else int
    wanted = sum(_STATE_TENSORS * taken(ITEM_BYTES["float32"] * numbers) for numbers in trained)
    if config.algorithm.needs_reference and config.reference.refresh_every is not None:
        dtype = kept_dtype(config.trainer.layout, config.model.dtype) if keeps_reference(config) else config.model.dtype
        wanted += sum(taken(ITEM_BYTES[dtype] * numbers) for numbers in models["trainer"].sizes)
    if device.type != "cpu" and wanted > (free := free_memory.free_bytes(torch.device("cpu"))):
        beside, mend = "training", "set checkpoint.background to false, so that training waits while it is written"
        if keeps_reference(config):
            beside, mend = "passes of a hybrid reference", "use reference.placement: own"
            if config.runtime.kind == "ray":  # where none is `own`, nor refreshed elsewhere
                refreshed = config.reference.refresh_every is not None
                mend = "leave reference.refresh_every out" if refreshed else "use reference.placement: process"
        raise ConfigError(
            f"a checkpoint is written beside {beside}, from a copy that takes {in_gib(wanted)} of this host's memory, "
            f"and {in_gib(free)} are free; {mend}, or free memory"
        )
    return wanted


def _asleep(config: TrainConfig, models: Mapping[str, PlannedModel], device: torch.device) -> dict[str, int]:
    """What models in training have in the host's memory while they sleep, beside what is there in any case: a flat
    tensor of the weights, and one of each moment, pinned."""
    trained = {
        name: trained_bytes_of(own, models[name], config.model.dtype, device) for name, own in _trained(config).items()
    }
    found = {
        f"{name}: float32 weights and moments, asleep": pinned(each.weights) + 2 * pinned(each.moments // 2)
        for name, each in trained.items()
        if each.weights + each.moments
    }
    if keeps_reference(config):
        size, _ = hybrid_bytes_of(config.trainer, models["trainer"], config.model.dtype, device)
        found["reference: weights, asleep"] = pinned(size)
    return {use: size for use, size in found.items() if size}


def _require_room(config: TrainConfig, place: str, free: int, uses: Mapping[str, int], turn: str, size: int) -> None:
    """Raises ConfigError."""
    if size > (1 - SPARE) * free:
        largest = sorted(uses.items(), key=lambda use: -use[1])[:MOST_TOLD]
        raise ConfigError(
            f"this run needs {in_gib(size)} on {place} {turn}, and {in_gib(free)} are free there, of which a twentieth "
            f"is kept back; of all that it takes the most are {', '.join(f'{use} {in_gib(n)}' for use, n in largest)}; "
            f"{what_to_lower(config, on_device=True)}, free memory there, or take a smaller model"
        )


def _activations(config: TrainConfig, models: Mapping[str, PlannedModel], device: torch.device) -> dict[str, int]:
    """Of all passes, at their height: the lanes compute at the same time."""
    model_config, itemsize = models["trainer"].config, ITEM_BYTES[config.model.dtype]
    shapes = {name: DecoderShape.of(model.config) for name, model in models.items()}
    algorithm, longest = config.algorithm, most_sampled(config, context_limit(model_config, config.engine))
    checkpointing = config.model.gradient_checkpointing
    uses = {}
    for name, own in _trained(config).items():
        uses[f"{name}: activations"] = passes_bytes(own, shapes[name], longest, itemsize, checkpointing=checkpointing)
    own_reference = algorithm.needs_reference and not keeps_reference(config)
    scoring = {
        "reference": (own_reference, config.reference.max_tokens_per_microbatch),
        "proximal": (config.copies_proximal, config.proximal.max_tokens_per_microbatch),
        "teacher": (algorithm.needs_teacher, config.teacher.max_tokens_per_microbatch),
        "reward model": (config.reward.model.path is not None, config.reward.model.max_tokens_per_microbatch),
    }
    for name, (computes, budget) in scoring.items():
        if computes:
            uses[f"{name}: activations"] = scored_bytes(shapes[name], max(budget, longest), itemsize)
    uses |= engine_uses(config, model_config, device)
    for judge in own_judges(config.rewards):
        asked = read_model_config(judge.path)
        shape, context = DecoderShape.of(asked), context_limit(asked, judge.engine)
        slots, of_number = judge.engine.max_concurrent_sequences, ITEM_BYTES[judge.engine.dtype or config.model.dtype]
        computed = engine_bytes(shape, slots, judge.engine.prefill_tokens_per_step, of_number, context)
        uses[f"judge {judge.path}: activations and logits"] = computed
        uses[f"judge {judge.path}: CUDA graphs"] = graphs_bytes(shape, slots, context)
    return uses


def _in_table(config: TrainConfig, cache: CachePlan, of_sample: int) -> int:
    """Of as many groups as the table holds. `of_sample`: bytes of each of their samples, at most."""
    rollout = config.rollout
    of_group = rollout.samples_per_prompt * of_sample
    bound = max(table_bytes(config), rollout.prompts_per_batch * of_group)
    return min(config.table_groups(config.ahead(_slots(config, cache))) * of_group, bound)


def _slots(config: TrainConfig, cache: CachePlan) -> int:
    """Lent ones included."""
    own = sum(each.count * cache_of(each, config, cache).slots for each in config.engine.sections)
    return own + config.engine.lent * cache.slots
