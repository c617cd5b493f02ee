"""An embedded engine as a worker."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch

from headrace.config.model import EngineConfig, PolicyEngineConfig
from headrace.engines.embedded.cache_plan import CachePlan, CacheRoom
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.remote_types import ENGINE_TYPES
from headrace.models.device_lanes import lanes_on
from headrace.models.loading import load_causal_lm
from headrace.roles.workers.engine_host import EngineHost
from headrace.runtime.inline import ThreadPlacement
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Host
from headrace.training.rank_device import rank_device
from headrace.weights.devices import device_name
from headrace.weights.plane import WeightOffer, WeightReceiver
from headrace.weights.receiving import HeldTo, receiver_at


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """From which an engine builds itself."""

    weights: str
    """Folder of the model, in Hugging Face format."""
    dtype: str
    """Of its weights, as `bfloat16`."""
    device: str
    config: EngineConfig
    cache: CachePlan | CacheRoom | None = None
    """Of this size, or as there is room on its device; unless given, as the engine finds room when it starts."""
    returns: bool = False
    """Whether somebody brings it back once it has died."""


class EngineWorker(EngineHost[EmbeddedEngine]):
    kind: ClassVar[str] = "engine"
    _by_turns: ClassVar[bool] = False
    """Whether it sleeps while others compute on its device."""
    types: ClassVar[WireTypes] = ENGINE_TYPES.with_types(
        WireTypes(
            {
                "cache_plan": CachePlan,
                "cache_room": CacheRoom,
                "engine_config": EngineConfig,
                "engine_spec": EngineSpec,
                "policy_engine_config": PolicyEngineConfig,
            }
        )
    )

    def __init__(self, spec: EngineSpec, host: Host) -> None:
        """Loads the model. Raises ConfigError."""
        if host.threads is not None:
            torch.set_num_threads(host.threads)
        super().__init__(host, returns=spec.returns)
        self._engine = self._made(spec, host)
        self._device = device_name(torch.device(spec.device))
        self._receivers: dict[tuple[str, str], WeightReceiver] = {}

    @classmethod
    def lanes(cls, spec: EngineSpec, host: Host) -> ThreadPlacement | None:
        """See `headrace.runtime.workers`."""
        return lanes_on(torch.device(spec.device), cls.kind, host.threads)

    async def revive(self, offer: WeightOffer) -> None:
        """In the place of an engine that died: another, with the newest whole version, which serves. Raises
        WeightError, EngineError."""
        dead = self._engine
        await dead.stop()
        self._engine = await dead.successor(self._receiver(offer))
        self._taken_out = None
        self._news.set()

    def _made(self, spec: EngineSpec, host: Host) -> EmbeddedEngine:
        model = load_causal_lm(spec.weights, dtype=getattr(torch, spec.dtype), device=spec.device)
        config = spec.config
        by_turns = self._by_turns or (isinstance(config, PolicyEngineConfig) and config.colocated)
        return EmbeddedEngine(
            model, config=config, runtime=host, lane=self.kind, cache=spec.cache, captures=not by_turns
        )

    def _receiver(self, offer: WeightOffer) -> WeightReceiver:
        """What it has mapped stays mapped; but a trainer has another address in each life, and the slots of the one
        before are let go."""
        where = offer.transport, offer.address
        if where not in self._receivers:
            self._receivers = {where: receiver_at(*where)}
        return HeldTo(offer, self._receivers[where])


class LentEngineWorker(EngineWorker):
    """On the device of the trainer's rank that has its number."""

    kind: ClassVar[str] = "lent"
    _by_turns: ClassVar[bool] = True

    def __init__(self, spec: EngineSpec, host: Host) -> None:
        """See `EngineWorker`."""
        super().__init__(_of_rank(spec, host), host)

    @classmethod
    def lanes(cls, spec: EngineSpec, host: Host) -> ThreadPlacement | None:
        """See `EngineWorker.lanes`."""
        return super().lanes(_of_rank(spec, host), host)


class JudgeEngineWorker(EngineWorker):
    """Of a judge that is a model of its own, whose weights stay as they were loaded."""

    kind: ClassVar[str] = "judge"

    def __init__(self, spec: EngineSpec, host: Host) -> None:
        """See `EngineWorker`."""
        super().__init__(spec, host)
        self._again = partial(self._made, spec, host)
        """Reads the model once more: the engine keeps its weights as it has arranged them, and no others."""

    async def revive(self, offer: WeightOffer | None) -> None:
        """In the place of an engine that died: another on the same weights, which serves. Raises EngineError,
        ConfigError."""
        await self._engine.stop()
        other = await self._services.compute(self.kind, self._again)
        await other.start()
        self._engine, self._taken_out = other, None
        self._news.set()


def _of_rank(spec: EngineSpec, host: Host) -> EngineSpec:
    return replace(spec, device=str(rank_device(spec.device, host.rank)))
