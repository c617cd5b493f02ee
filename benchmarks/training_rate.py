"""The trainer's rate on a CPU at 5 M and 90 M parameters, as a share of the machine's rate of matrix products.

    python -m benchmarks.training_rate [--runs 7] [--sizes 5M 90M] [--dtypes float32 bfloat16]

One batch is one micro-batch of samples of one length, forward and backward, and one step of AdamW. Counted are the
operations of products with weights and of causal attention, three times the forward pass's; of the output layer, which
shares its matrix with the embedding, only at the tokens that are trained. The rate of matrix products is measured in
turn with the batches, with as many threads.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.engine_sizes import model_of
from benchmarks.machine import save, spread
from benchmarks.packing import make_model
from headrace.config.trainer import OptimizerConfig, TrainerConfig
from headrace.models.operations import TrainingOperations, matrix_rate
from headrace.models.packing import MicroBatch, PackRow, pack
from headrace.training.protocol import LossTerms
from headrace.training.trainer import HFTrainer

THREADS = 2
DTYPES = ("float32", "bfloat16")
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Batch:
    samples: int
    prompt: int
    response: int

    def packed(self, vocabulary: int) -> MicroBatch:
        rng = np.random.default_rng(0)
        length = self.prompt + self.response
        rows = rng.integers(3, vocabulary, (self.samples, length))
        return pack([PackRow(row, np.arange(length) >= self.prompt) for row in rows])


BATCHES = {"5M": Batch(samples=64, prompt=16, response=128), "90M": Batch(samples=16, prompt=256, response=96)}


def nll(logprobs: torch.Tensor, micro: MicroBatch) -> LossTerms:
    return LossTerms(-logprobs.sum(), micro.mask.sum())


def trainer_of(size: str, dtype: torch.dtype, steps: int) -> tuple[HFTrainer, MicroBatch, float]:
    """A trainer, its batch, and the operations of that."""
    model: Any = make_model(large=True, dtype=torch.float32) if size == "5M" else model_of(size)
    vocabulary = model.config.vocab_size
    batch = BATCHES[size]
    lengths = [batch.prompt + batch.response] * batch.samples
    operations = TrainingOperations(model).of(lengths, heads=batch.response * batch.samples)
    config = TrainerConfig(optimizer=OptimizerConfig(lr=1e-5))
    trainer = HFTrainer(model, config=config, loss=nll, total_steps=steps, dtype=dtype)
    return trainer, batch.packed(vocabulary), operations


def measure(size: str, dtype: str, runs: int) -> dict[str, Any]:
    trainer, micro, operations = trainer_of(size, getattr(torch, dtype), runs + 1)
    shares, passes, steps = [], [], []
    for run in range(runs + 1):
        began = time.perf_counter()
        trainer.accumulate(micro)
        between = time.perf_counter()
        trainer.step()
        ended = time.perf_counter()
        rate = matrix_rate(CPU, getattr(torch, dtype))
        if run:
            passes.append(between - began)
            steps.append(ended - between)
            shares.append(operations / (ended - began) / rate)
    row: dict[str, Any] = {"size": size, "dtype": dtype, "tokens": micro.num_tokens, "operations": operations}
    row |= {"pass_s": spread(passes), "step_s": spread(steps), "share_of_matrix_rate": spread(shares)}
    print(size, dtype, {name: round(row[name]["median"], 3) for name in ("pass_s", "step_s", "share_of_matrix_rate")})
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--sizes", nargs="+", choices=[*BATCHES], default=[*BATCHES])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    rows = [measure(size, dtype, args.runs) for size in args.sizes for dtype in args.dtypes]
    save("training_rate", {"threads": THREADS, "runs": args.runs, "rows": rows})


if __name__ == "__main__":
    main()
