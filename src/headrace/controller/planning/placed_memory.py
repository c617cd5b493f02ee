"""What a run takes of each device that a cluster gives its workers: one worker of each role that shares it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headrace.config import ConfigError, TrainConfig
from headrace.config.cluster import LENT, gives_gpu
from headrace.controller.planning import free_memory
from headrace.controller.planning.cache_memory import KV_CACHE, MOST_TOLD, engine_dtype, plan_kv_cache
from headrace.controller.planning.free_memory import GIB, SPARE, in_gib
from headrace.controller.planning.memory_by_turns import OF_LENT, beside_caches, by_turns, keeps_reference
from headrace.controller.planning.memory_uses import activation_uses, fixed_uses
from headrace.controller.planning.out_of_memory import what_to_lower
from headrace.controller.planning.placement import claims_for, role_sets, worker_counts
from headrace.controller.planning.planned_model import PlannedModel
from headrace.controller.planning.product_workspaces import WORKSPACES, workspaces_of_run
from headrace.controller.planning.role_devices import is_elsewhere
from headrace.engines.embedded.cache_plan import CachePlan, CacheRoom, cache_shape, context_limit, is_paged

CUDA = torch.device("cuda")
_BEGIN = {
    "trainer": ("trainer: ", "weight plane: "),
    "critic": ("critic: ",),
    "reference": ("reference: ",),
    "proximal": ("proximal: ",),
    "teacher": ("teacher: ",),
    "reward": ("reward model: ",),
    "engine": ("engine: ",),
    LENT: (OF_LENT,),
    "judge": ("judge ",),
}
"""How the uses of each role's workers begin, of those that have a model."""


@dataclass(frozen=True, slots=True)
class PlacedMemory:
    """Of one device."""

    roles: tuple[str, ...]
    """Of each one worker."""
    uses: Mapping[str, int]
    turns: Mapping[str, int]
    """See `MemoryEstimate.turns`."""
    free: int | None
    """There, of the part that they have; None where nobody here can ask."""
    room: CacheRoom
    """For the KV cache of an engine there."""
    cache: CachePlan | None = None
    """Of an engine there; where nobody can ask what is free, all that is asked for."""

    @property
    def needed(self) -> int:
        """At once."""
        return max(self.turns.values(), default=sum(self.uses.values()))


def device_sets(config: TrainConfig) -> list[tuple[str, ...]]:
    """Roles whose workers have GPUs of a cluster: those of a set share one, each with the others' of its number."""
    if config.model.device == "cpu":
        return []
    together, alone = role_sets(config, worker_counts(config, 0))
    found = [
        tuple(role for role in each if role in _BEGIN and gives_gpu(config.cluster, role))
        for each in (*together, *alone)
    ]
    return [each for each in found if each]


def uses_begin(config: TrainConfig, roles: Collection[str]) -> tuple[str, ...]:
    """With what the uses of these roles begin. A reference that is hybrid is in the trainer's workers."""
    begin = [text for role in roles for text in _BEGIN[role]]
    return (*begin, "reference: ") if "trainer" in roles and keeps_reference(config) else tuple(begin)


def others(config: TrainConfig, roles: Collection[str], *, engine: bool) -> list[str]:
    """Of the roles whose workers have models apart, those that the run has but these. `engine`: whether it has one."""
    idle = () if engine else ("engine", LENT)
    counts = worker_counts(config, 0).items()
    return [role for role, count in counts if count and role in _BEGIN and role not in (*roles, *idle)]


def placed_memory(
    config: TrainConfig, models: Mapping[str, PlannedModel], roles: Sequence[str], left_out: tuple[str, ...]
) -> PlacedMemory:
    """`roles`: a set of `device_sets`. `left_out`: how uses begin that the run does not have. Raises ConfigError where
    the devices are this machine's, which a Ray of the run's own has, and are too small."""
    share, elsewhere = min(max(_devices(config, role) for role in roles), 1.0), is_elsewhere(config, roles[0])
    config, engines = _one_of_each(config, roles)
    every = fixed_uses(config, models, CUDA, elsewhere=elsewhere) | activation_uses(config, models, CUDA)
    uses = _of_one_judge(every)
    uses = {use: size for use, size in uses.items() if use.startswith(uses_begin(config, roles))}
    gone = (*left_out, *(() if "engine" in engines else _BEGIN["engine"]))
    uses = {use: size for use, size in uses.items() if not use.startswith(gone)}
    if config.engine.colocated:  # what it has is dropped before
        uses.pop("engine: next version while it is received", None)
    if uses:
        uses[WORKSPACES] = workspaces_of_run(config, uses)
    engines = [role for role in engines if any(use.startswith(_BEGIN[role]) for use in uses)]
    beside = max(sum(there.values()) for there, _ in beside_caches(config, uses))
    room, free = CacheRoom((1 - SPARE) * share, beside, max(len(engines), 1)), None if elsewhere else _least_free()
    caches = {KV_CACHE if role == "engine" else f"{OF_LENT}KV cache": 0 for role in engines}
    cache = None
    if engines:
        policy = models["trainer"].config
        if free is not None:
            _require(config, roles, int(share * free), uses | dict.fromkeys(caches, _least(config, policy)))
            dtype = getattr(torch, engine_dtype(config))
            cache = room.plan(policy, config.engine, dtype, free, paged=is_paged(CUDA, policy))
        else:
            cache = plan_kv_cache(policy, config.engine, engine_dtype(config), CUDA, elsewhere=True)
        uses |= dict.fromkeys(caches, cache.bytes_wanted)
    if free is not None:
        _require(config, roles, int(share * free), uses)
    turns = by_turns(config, uses, on_device=True)
    return PlacedMemory(tuple(roles), uses, turns, None if free is None else int(share * free), room, cache)


def _one_of_each(config: TrainConfig, roles: Sequence[str]) -> tuple[TrainConfig, list[str]]:
    """With one engine, of the embedded ones that with most sequences; and which kinds of embedded engines are among
    the roles. What servers take is their own affair."""
    engine = config.engine
    slots = [each.max_concurrent_sequences for each in engine.sections if not each.is_server]
    one = {"kind": "embedded", "url": None, "replicas": 1, "max_concurrent_sequences": max(slots, default=1)}
    changed = engine.model_copy(update={**one, "beside": [], "lent": int(LENT in roles)})
    kinds = [*(["engine"] if slots and "engine" in roles else []), *([LENT] if LENT in roles else [])]
    return config.model_copy(update={"engine": changed}), kinds


def _of_one_judge(uses: Mapping[str, int]) -> dict[str, int]:
    """Each has a device of its own: without those of all but the largest."""
    judges: dict[str, int] = {}
    for use, size in uses.items():
        if use.startswith("judge "):
            name = use.rpartition(": ")[0]
            judges[name] = judges.get(name, 0) + size
    smaller = sorted(judges, key=lambda name: judges[name])[:-1]
    return {use: size for use, size in uses.items() if use.rpartition(": ")[0] not in smaller}


def _least(config: TrainConfig, policy: Any) -> int:
    """Bytes of a KV cache that one sequence fits, or those that are given."""
    if config.engine.kv_cache_gib is not None:
        return int(config.engine.kv_cache_gib * GIB)
    dtype, context = getattr(torch, engine_dtype(config)), context_limit(policy, config.engine)
    return cache_shape(policy).full_bytes(1, context, dtype, paged=is_paged(CUDA, policy))


def _least_free() -> int:
    """Of this machine's devices."""
    return min(free_memory.free_bytes(torch.device("cuda", n)) for n in range(max(torch.cuda.device_count(), 1)))


def _require(config: TrainConfig, roles: Sequence[str], free: int, uses: Mapping[str, int]) -> None:
    """Raises ConfigError."""
    turns = by_turns(config, uses, on_device=True) or {"": sum(uses.values())}
    for turn, size in turns.items():
        if size > (1 - SPARE) * free:
            largest = sorted(uses.items(), key=lambda use: -use[1])[:MOST_TOLD]
            raise ConfigError(
                f"one worker each of {' + '.join(roles)} needs {in_gib(size)} of their device{' ' * bool(turn)}{turn}, "
                f"and {in_gib(free)} are free there for them, of which a twentieth is kept back; of all that they take "
                f"the most are {', '.join(f'{use} {in_gib(n)}' for use, n in largest)}; "
                f"{what_to_lower(config, on_device=True)}, give them devices of their own (cluster.place), or take a "
                "smaller model"
            )


def _devices(config: TrainConfig, role: str) -> float:
    """Of each worker."""
    role = "trainer" if role == LENT else role
    return next(
        claims_for(name, place, max(worker_counts(config, 0)[name], 1), name)[0].devices
        for name, place in config.cluster.place.items()
        if name == role
    )
