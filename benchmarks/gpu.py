"""The engine and the trainer on one CUDA device: `make gpu-check`. Figures go to `results/gpu.json`.

The engine against Hugging Face `generate`, 64 sequences of 128 tokens, both in bfloat16, sides in turn; what weight
swaps cost; the trainer's packed tokens per second.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine import CONCURRENT, MAX_NEW_TOKENS, HuggingFaceSide, OwnSide, make_prompts
from benchmarks.machine import save, spread
from benchmarks.policy_model import VOCABULARY, make_model
from headrace.config import TrainConfig
from headrace.engines.protocol import SwapMode
from headrace.models.loading import load_causal_lm
from headrace.models.packing import MicroBatch, PackRow, pack
from headrace.training.protocol import LossTerms
from headrace.training.trainer import HFTrainer

RUNS, SAMPLES, LENGTH = 5, 64, 256


def engine_row(folder: Path, dtype: str) -> dict[str, Any]:
    prompts = make_prompts(CONCURRENT)
    own, theirs = OwnSide(folder, dtype, prompts, "cuda"), HuggingFaceSide(folder, dtype, prompts, "cuda")
    speeds: dict[str, list[float]] = {"headrace": [], "generate": []}
    for round_ in range(RUNS + 1):
        for name, side in (("headrace", own), ("generate", theirs)):
            began = time.perf_counter()
            tokens = side.tokens()
            if round_:
                speeds[name].append(tokens / (time.perf_counter() - began))
    swaps = {str(mode): own.swap(mode, number) for number, mode in enumerate((SwapMode.KEEP, SwapMode.RECOMPUTE), 1)}
    own.close()
    ratio = spread([a / b for a, b in zip(speeds["headrace"], speeds["generate"], strict=True)])
    return {"dtype": dtype, "tokens_per_s": {k: spread(v) for k, v in speeds.items()}, "ratio": ratio, "swaps": swaps}


def nll(logprobs: torch.Tensor, micro: MicroBatch) -> LossTerms:
    return LossTerms(-logprobs.sum(), micro.mask.sum())


def trainer_tokens_per_s(folder: Path, dtype: torch.dtype) -> float:
    config = TrainConfig.model_validate({"model": {"path": str(folder)}, "data": {"train": "none"}})
    model = load_causal_lm(folder, dtype=torch.float32, device="cuda")
    trainer = HFTrainer(model, config=config.trainer, loss=nll, total_steps=RUNS + 1, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(2, VOCABULARY, (SAMPLES, LENGTH), generator=generator).numpy()
    micro = pack([PackRow(row, row > 0) for row in tokens])
    rates = []
    for _ in range(RUNS + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        trainer.accumulate(micro)
        trainer.step()
        torch.cuda.synchronize()
        rates.append(SAMPLES * LENGTH / (time.perf_counter() - began))
    return statistics.median(rates[1:])


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("no CUDA device here: nothing was measured")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder, 0.0)
        result = {
            "device": torch.cuda.get_device_name(),
            "concurrent": CONCURRENT,
            "max_new_tokens": MAX_NEW_TOKENS,
            "engine": [engine_row(folder, dtype) for dtype in ("float32", "bfloat16")],
            "trainer_tokens_per_s": {
                str(dtype): trainer_tokens_per_s(folder, dtype) for dtype in (torch.float32, torch.bfloat16)
            },
        }
    print(result)
    save("gpu", result)


if __name__ == "__main__":
    main()
