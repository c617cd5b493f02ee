"""Which device each is on that computes with a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

from headrace.config import TrainConfig
from headrace.config.places import layouts_of
from headrace.engines.pool import EnginePool
from headrace.runtime.protocol import Runtime

DevicesOf = Callable[[str], Sequence[str]]
"""By who it is, in the words of `TimeSpent.busy_s`."""


def devices_of(config: TrainConfig, runtime: Runtime, engines: EnginePool, judges: Sequence[EnginePool]) -> DevicesOf:
    """Of a worker that a cluster has given some, these, as `headrace check` draws them; else the one of this machine on
    which it computes, as `cpu` or `cuda:1`. None of an inference server that nobody has given any: which ones it is on
    is its own matter."""
    servers, layouts = servers_among(config), layouts_of(config)
    own = cache(partial(own_device, config.model.device))
    workers: dict[str, str] = {}
    """By who it is."""

    def worker_of(who: str) -> str:
        if who not in workers:
            named = {
                member.name: pool.handles[member.index].worker
                for pool in (engines, *judges)
                for member in pool.members
                if member.index < len(pool.handles)
            }
            kind, _, rank = who.rpartition("/")
            workers[who] = named.get(who, who if kind in layouts and rank.isdecimal() else f"{who}/0")
        return workers[who]

    def devices(who: str) -> Sequence[str]:
        worker = worker_of(who)
        if given := runtime.devices(worker):
            return given
        if any(servers(member.index) for member in engines.members if member.name == who):
            return ()
        kind, _, rank = worker.rpartition("/")
        return (own(int(rank) if kind in layouts else 0),)

    return devices


def own_device(first: str, rank: int) -> str:
    """Of this machine, where `model.device` is `first`: that of a rank. Raises ConfigError."""
    from headrace.models.loading import resolve_device
    from headrace.training.rank_device import rank_device

    device = rank_device(str(resolve_device(first)), rank)
    return device.type if device.type == "cpu" else f"{device.type}:{device.index or 0}"


def servers_among(config: TrainConfig) -> Callable[[int], bool]:
    """Whether the policy's engine of this number is an inference server. Those that are added later are of the first
    section that a run starts itself."""
    sections = config.engine.sections
    each = [section.is_server for section in sections for _ in range(section.count)]
    each += [False] * config.engine.lent
    added = next((section.is_server for section in sections if not section.urls), False)
    return lambda number: each[number] if number < len(each) else added
