"""Models of real sizes with random weights, and an engine that serves one."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.config import EngineConfig
from headrace.controller.building.threads import inline_runtime
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.protocol import GenerateRequest, SamplingParams, SwapMode, SwapReport, TokenChunk
from headrace.weights.in_process import MemoryPublisher
from headrace.weights.version import Version

SHAPES: dict[str, dict[str, Any]] = {
    "0.5 B": {
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "1.5 B": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
    },
}
"""Of Qwen2.5, whose vocabulary is 151,936; the output layer is the embedding."""
VOCABULARY = 151_936


def random_model(shape: str, dtype: torch.dtype, *, of_llama: bool = False) -> Any:
    """On the device; nothing is read or written. `of_llama`: of that architecture, whose folders may have any
    tokenizer."""
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

    torch.manual_seed(0)
    config = (LlamaConfig if of_llama else Qwen2Config)(
        **SHAPES[shape],
        vocab_size=VOCABULARY,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=None,
    )
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def parameters(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())


def random_tokens(rows: int, length: int, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, (rows, length)).astype(np.int32)


def free_memory() -> None:
    gc.collect()
    torch.cuda.empty_cache()


class Served:
    """An engine behind its asyncio front, in a loop of its own, with lanes as a run has them."""

    def __init__(self, model: Any, config: EngineConfig) -> None:
        self._loop = asyncio.Runner()
        self._runtime = inline_runtime(None, device=torch.device("cuda"))
        self._publisher = MemoryPublisher()
        self.engine = EmbeddedEngine(model, config=config, runtime=self._runtime)
        self._loop.run(self.engine.start())
        self._runs = 0

    def generate(self, prompts: NDArray[np.int32], new_tokens: int) -> tuple[float, list[TokenChunk]]:
        """Seconds, and what was generated: all at once."""

        async def all_of_them() -> list[TokenChunk]:
            return await asyncio.gather(*(self._one(i, prompt, new_tokens) for i, prompt in enumerate(prompts)))

        self._runs += 1
        began = time.perf_counter()
        chunks = self._loop.run(all_of_them())
        return time.perf_counter() - began, chunks

    def swap(
        self, prompts: NDArray[np.int32], new_tokens: int, weights: dict[str, torch.Tensor], mode: SwapMode
    ) -> tuple[float, float, SwapReport]:
        """Seconds that a publication took, those until the swap was done, and the swap's report; halfway through."""

        async def run() -> tuple[float, float, SwapReport]:
            others = [asyncio.create_task(self._one(i, prompt, new_tokens)) for i, prompt in enumerate(prompts[1:], 1)]
            first = self.engine.generate(self._request(0, prompts[0], new_tokens, stream=True))
            seen = 0
            while seen < new_tokens // 2:
                seen += len((await anext(first)).tokens)
            began = time.perf_counter()
            await self._runtime.compute(
                "trainer", self._publisher.publish, Version(0, self._runs), list(weights.items())
            )
            published = time.perf_counter()
            report = await self.engine.update(self._publisher.receiver(), mode)
            done = time.perf_counter()
            async for _ in first:
                pass
            await asyncio.gather(*others)
            assert report is not None
            return published - began, done - published, report

        self._runs += 1
        return self._loop.run(run())

    @property
    def kernels(self) -> str:
        """By which decode steps are computed: Triton's, or torch's where these do not compile."""
        runner: Any = self.engine._serving()._runner
        return type(getattr(runner, "operations", runner)).__name__

    def close(self) -> None:
        async def end() -> None:
            await self.engine.stop()
            await self._runtime.close()

        self._loop.run(end())
        self._loop.close()

    async def _one(self, index: int, prompt: NDArray[np.int32], new_tokens: int) -> TokenChunk:
        return [chunk async for chunk in self.engine.generate(self._request(index, prompt, new_tokens))][-1]

    def _request(self, index: int, prompt: NDArray[np.int32], new_tokens: int, stream: bool = False) -> GenerateRequest:
        key = self._runs * 1_000_003 + index
        return GenerateRequest(f"{self._runs}.{index}", prompt, SamplingParams(new_tokens), key, stream=stream)
