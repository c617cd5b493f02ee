"""How much memory a run will take, worked out from shapes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from headrace.algorithms.kept_sets import most_bytes
from headrace.config import ConfigError, TrainConfig
from headrace.config.cluster import LENT
from headrace.config.values.dtypes import ITEM_BYTES
from headrace.config.values.hosts import is_loopback
from headrace.controller.planning import free_memory
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
from headrace.controller.planning.free_memory import SPARE, in_gib, pinned
from headrace.controller.planning.memory_by_turns import OF_LENT, by_turns, keeps_reference
from headrace.controller.planning.memory_uses import PLANE, activation_uses, fixed_uses, trained_sections
from headrace.controller.planning.out_of_memory import what_to_lower
from headrace.controller.planning.placed_memory import (
    PlacedMemory,
    device_sets,
    others,
    placed_memory,
    uses_begin,
)
from headrace.controller.planning.planned_model import PlannedModel, planned_models
from headrace.controller.planning.product_workspaces import WORKSPACES, workspaces_of_run
from headrace.controller.planning.role_devices import is_elsewhere, policy_role
from headrace.controller.planning.run_processes import NO_PROCESSES, RunProcesses, check_room
from headrace.controller.planning.table_size import most_sampled, table_bytes
from headrace.controller.planning.trained_memory import (
    hybrid_bytes_of,
    kept_dtype,
    trained_bytes_of,
)
from headrace.controller.planning.transports import transport_of
from headrace.engines.embedded.cache_plan import CachePlan, CacheRoom, context_limit
from headrace.models.experts import routed_bytes
from headrace.models.loading import resolve_device

_AT_RELAYS = "weight plane: two versions at each relay"
_SENT = "weight plane: what ranks on other machines sent last, at most"
_COPY = "checkpoint: copy while it is written"
_BEGUN = "trainer: what a batch began with, for a replica that is made anew"
_STATE_TENSORS = 3
"""Of a parameter: its float32 master, and two moments."""
_HOST = "this host"
_NODES = "the cluster's nodes"
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
    """Whose memory it is: `this host`, a device, or that of a cluster's nodes."""
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
    places: tuple[PlacedMemory, ...] = ()
    """Of devices that a cluster gives; what is there is none of `uses`."""
    rooms: Mapping[str, CacheRoom | None] = field(default_factory=dict)
    """By the kind of workers, of engines that work out their caches where they are: what there is for those; None where
    nothing is known of it."""
    beside_trainer: Mapping[str, int] = field(default_factory=dict)
    """As `on_host`, of the trainer's machine where a cluster has that."""

    @property
    def on_device(self) -> bool:
        """Whether those are that train."""
        return self.place not in (_HOST, _NODES) or any("trainer" in each.roles for each in self.places)

    @property
    def published(self) -> int:
        """Of two versions of the weights where whoever takes them gets them from; 0 if nobody publishes. Those at
        relays come beside them."""
        return next((each[PLANE] for each in (self.uses, self.on_host, self.beside_trainer) if PLANE in each), 0)

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
    models = planned_models(config, model_config)
    parameters = models["trainer"].parameters
    left_out = (*(() if engine else _OF_ENGINE), *(() if trainer else _OF_TRAINING))
    places = _places(config, models, device, left_out)
    away = [role for each in places for role in each.roles]
    rest = others(config, away, engine=engine)
    here = device if policy_role(config) not in away else _here(config, rest)
    elsewhere = any(is_elsewhere(config, role) for role in rest)
    free = None if elsewhere or (away and not rest) else free_memory.free_bytes(here)
    uses = fixed_uses(config, models, here, policy_on=device, elsewhere=free is None)
    uses |= {} if here.type == "cpu" else activation_uses(config, models, here)
    gone = (*left_out, *uses_begin(config, away))
    uses = {use: size for use, size in uses.items() if not use.startswith(gone)}
    if config.engine.colocated:  # what it has is dropped before
        uses.pop("engine: next version while it is received", None)
    if here.type != "cpu" and (engine or trainer):
        uses[WORKSPACES] = workspaces_of_run(config, uses)
    cache = next((each.cache for each in places if "engine" in each.roles and each.cache is not None), None)
    if not engine:
        cache = CachePlan(slots=1, max_context=context_limit(model_config, config.engine), bytes_wanted=0)
    elif cache is None and (here.type == "cpu" or free is None or "engine" in away):
        share, unknown = as_many_as_first(config), free is None or "engine" in away or is_elsewhere(config, "engine")
        cache = plan_kv_cache(model_config, config.engine, engine_dtype(config), here, share, elsewhere=unknown)
    elif cache is None:
        assert free is not None
        cache = cache_beside(config, model_config, here, free, uses)
    kept: dict[str, int] = _off_device(config, models, device) if trainer else {}
    if engine and not trainer and not config.engine.apart:
        kept["weight plane: version 0, on the host"] = ITEM_BYTES[engine_dtype(config)] * parameters
        uses |= kept if device.type == "cpu" else {}
    if processes.count:
        (uses if device.type == "cpu" else kept)[f"{_PROCESSES} ({processes.count})"] = processes.size
    if engine and "engine" not in away:
        uses[KV_CACHE] = caches_bytes(config, cache)
    if engine and config.engine.lent and LENT not in away:
        uses[f"{OF_LENT}KV cache"] = config.engine.lent * cache.bytes_wanted
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
    rooms: dict[str, CacheRoom | None] = {role: None for role in ("engine", LENT) if is_elsewhere(config, role)}
    rooms |= {role: each.room for each in places for role in each.roles if role in ("engine", LENT)}
    told = (_NODES if elsewhere else _HOST) if here.type == "cpu" else str(here)
    if device.type == "cpu":
        uses |= table
        turns = {} if away else by_turns(config, uses, on_device=False)
        return MemoryEstimate(parameters, uses, told, free, cache, {}, slots, turns, places, rooms)
    turns = {} if away else by_turns(config, uses, on_device=True)
    if free is not None and here.type != "cpu":
        for turn, size in ({"beside what a cluster places": sum(uses.values())} if away else turns).items():
            _require_room(config, str(here), free, uses, turn, size)
    if config.engine.colocated or config.engine.lent:
        kept |= _asleep(config, models, device)
    if trainer and transport_of(config, device) == "shm":
        kept[PLANE] = 2 * ITEM_BYTES[config.model.dtype] * parameters
    far = is_elsewhere(config, policy_role(config))
    on_host, beside = (table, kept) if far else (table | kept, {})
    return MemoryEstimate(parameters, uses, told, free, cache, on_host, slots, turns, places, rooms, beside)


def _places(
    config: TrainConfig, models: Mapping[str, PlannedModel], device: torch.device, left_out: tuple[str, ...]
) -> tuple[PlacedMemory, ...]:
    """Of the devices that a cluster gives: one that is joined, or, where the policy is on a `device` of this machine, a
    Ray of the run's own. Raises ConfigError."""
    if config.runtime.address is None and device.type == "cpu":
        return ()
    return tuple(placed_memory(config, models, roles, left_out) for roles in device_sets(config))


def _here(config: TrainConfig, rest: Sequence[str]) -> torch.device:
    """Where those compute that a cluster gives no device, if there are any. Raises ConfigError."""
    return resolve_device(config.model.device) if rest else torch.device("cpu")


def _begun(config: TrainConfig, models: Mapping[str, PlannedModel]) -> int:
    """Masters and moments of replicas of those that make several steps on a batch, once more."""
    updates = {"trainer": config.algorithm.updates_per_batch, "critic": config.critic.updates_per_batch}
    several = {
        name: own.layout.model_replicas
        for name, own in trained_sections(config).items()
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


def _off_device(config: TrainConfig, models: Mapping[str, PlannedModel], device: torch.device) -> dict[str, int]:
    """What models in training have in the host's memory, beside a device. Raises ConfigError if it, where it
    is this one, has not so much."""
    found = {
        f"{name}: float32 weights, moments": trained_bytes_of(own, models[name], config.model.dtype, device).off_device
        for name, own in trained_sections(config).items()
    }
    if keeps_reference(config):
        _, found["reference: weights"] = hybrid_bytes_of(config.trainer, models["trainer"], config.model.dtype, device)
    wanted, free = sum(found.values()), free_memory.free_bytes(torch.device("cpu"))
    if wanted > free and not is_elsewhere(config, "trainer"):
        raise ConfigError(
            f"optimizer.offload needs {in_gib(wanted)} of this host's memory, and {in_gib(free)} are free; leave it "
            "out, free memory, or take a smaller model"
        )
    return {use: size for use, size in found.items() if size}


def _copied(config: TrainConfig, models: Mapping[str, PlannedModel], device: torch.device) -> int:
    """What a checkpoint holds, all ranks' parts together, in the host's memory; beside a device tensor by tensor in
    pinned memory, of which torch takes powers of two. Raises ConfigError if that, beside a device of this
    machine, has not so much."""
    trained = [numbers for name in trained_sections(config) for numbers in models[name].sizes]
    taken = pinned if device.type != "cpu" else int
    wanted = sum(_STATE_TENSORS * taken(ITEM_BYTES["float32"] * numbers) for numbers in trained)
    if config.algorithm.needs_reference and config.reference.refresh_every is not None:
        dtype = kept_dtype(config.trainer.layout, config.model.dtype) if keeps_reference(config) else config.model.dtype
        wanted += sum(taken(ITEM_BYTES[dtype] * numbers) for numbers in models["trainer"].sizes)
    known = device.type != "cpu" and not is_elsewhere(config, "trainer")
    if known and wanted > (free := free_memory.free_bytes(torch.device("cpu"))):
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
        name: trained_bytes_of(own, models[name], config.model.dtype, device)
        for name, own in trained_sections(config).items()
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
