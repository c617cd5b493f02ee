"""What is trained is what was sampled: the engine's log-probs under truncation against the trainer's, token by token.

Each side computes its own: the engine as it decodes, the trainer from packed rows and the kept sets that came with the
tokens.
"""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import numpy as np
import pytest
import torch
from exact_helpers import ARCHITECTURES, fine_tuned, sentences

from headrace.algorithms.kept_sets import joined
from headrace.config import EngineConfig
from headrace.config.trainer import TrainerConfig
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.protocol import GenerateRequest, SamplingParams
from headrace.models.packing import MicroBatch, PackRow, pack
from headrace.runtime.inline import InlineRuntime
from headrace.training.frozen import FrozenScorer
from headrace.training.protocol import LossTerms
from headrace.training.trainer import HFTrainer

SAMPLINGS = {
    "temperature 0.7, top-p 0.8": {"temperature": 0.7, "top_p": 0.8, "top_k": 512},
    "top-k 20": {"temperature": 1.0, "top_k": 20},
    "all three": {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
}
_BOUND = 1e-5
_TOKENS = 96


def _sampled(model: Any, count: int, **params: Any) -> list[PackRow]:
    """Rows with the engine's log-probs as the column `logprobs`."""

    async def run() -> list[PackRow]:
        runtime = InlineRuntime()
        config = EngineConfig(max_concurrent_sequences=32)
        engine = EmbeddedEngine(copy.deepcopy(model), config=config, runtime=runtime)
        await engine.start()
        sampling = SamplingParams(max_new_tokens=_TOKENS, **params)

        async def row(i: int, prompt: Any) -> PackRow:
            request = GenerateRequest(f"r{i}", prompt, sampling, noise_key=i, stream=i % 2 == 0, return_kept=True)
            chunks = [chunk async for chunk in engine.generate(request)]
            tokens = np.concatenate([prompt, *(chunk.tokens for chunk in chunks)])
            logprobs = np.concatenate([np.zeros(len(prompt)), *(chunk.logprobs for chunk in chunks)])
            kept = joined([None, *(chunk.kept for chunk in chunks)], [len(prompt), *(len(c.tokens) for c in chunks)])
            return PackRow(tokens, np.arange(len(tokens)) >= len(prompt), {"logprobs": logprobs}, kept)

        prompts = sentences(count, 6, seed=99).astype(np.int32)
        rows = await asyncio.gather(*(row(i, prompt[: 1 + i % 6]) for i, prompt in enumerate(prompts)))
        await engine.stop()
        await runtime.close()
        return rows

    return asyncio.run(run())


def _no_loss(outputs: torch.Tensor, micro: MicroBatch) -> LossTerms:
    return LossTerms(outputs.sum(), micro.mask.sum())


def _compare(model: Any, rows: list[PackRow], temperature: float) -> int:
    """Number of tokens compared; all sides of the trainer's agree with the engine."""
    trainer = HFTrainer(
        copy.deepcopy(model), config=TrainerConfig(), loss=_no_loss, total_steps=1, temperature=temperature
    )
    scorer = FrozenScorer(copy.deepcopy(model), temperature=temperature)
    tokens = 0
    for start in range(0, len(rows), 16):
        micro = pack(rows[start : start + 16])
        for score in (trainer.logprobs, scorer.logprobs):
            ratio = torch.expm1(score(micro) - micro.columns["logprobs"])[micro.mask]
            assert float(ratio.abs().max()) <= _BOUND
        tokens += int(micro.mask.sum())
    return tokens


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_ratio_is_one(sampling: str) -> None:
    model, params = fine_tuned("qwen3", steps=60), SAMPLINGS[sampling]
    rows = _sampled(model, 24, **params)
    assert _compare(model, rows, params["temperature"]) > 2000


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture",
    [each if each == "qwen3" else pytest.param(each, marks=pytest.mark.soak) for each in ARCHITECTURES],
)
def test_every_ratio_is_one_over_twenty_thousand_tokens(architecture: str) -> None:
    model = fine_tuned(architecture)
    for params in SAMPLINGS.values():
        rows = _sampled(model, 212, **params)
        assert _compare(model, rows, params["temperature"]) >= 20_000
