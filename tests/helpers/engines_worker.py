"""An embedded engine as a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import ClassVar

import torch
from engines_helpers import tiny_model

from headrace.algorithms.kept_sets import KeptSets
from headrace.config import EngineConfig
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.protocol import FinishReason, GenerateRequest, SamplingParams, TokenChunk
from headrace.runtime.wire_types import WireTypes
from headrace.runtime.workers import Host
from headrace.weights.version import Version


@dataclass(frozen=True, slots=True)
class EngineSpec:
    seed: int
    config: EngineConfig


class EngineWorker:
    kind: ClassVar[str] = "engine"
    types: ClassVar[WireTypes] = WireTypes(
        {
            "engine_spec": EngineSpec,
            "engine_config": EngineConfig,
            "generate_request": GenerateRequest,
            "sampling_params": SamplingParams,
            "token_chunk": TokenChunk,
            "finish_reason": FinishReason,
            "version": Version,
            "kept_sets": KeptSets,
        }
    )

    def __init__(self, spec: EngineSpec, host: Host) -> None:
        if host.threads is not None:
            torch.set_num_threads(host.threads)
        self._engine = EmbeddedEngine(tiny_model(seed=spec.seed), config=spec.config, runtime=host)

    async def start(self) -> None:
        await self._engine.start()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        async with aclosing(self._engine.generate(request)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def running(self) -> int:
        return self._engine.stats().running

    async def close(self) -> None:
        await self._engine.stop()
