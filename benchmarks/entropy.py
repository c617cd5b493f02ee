"""What it costs to record the policy's entropy: processor time of a trainer's step with and without it, at three sizes
of vocabulary."""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from benchmarks.machine import save, spread
from headrace.algorithms.policy_loss import PolicyLoss
from headrace.config.algorithm import AlgorithmConfig
from headrace.config.trainer import TrainerConfig
from headrace.models.packing import MicroBatch, PackRow, pack
from headrace.training.objective import PolicyObjective, PolicyOutputs, output_columns
from headrace.training.trainer import HFTrainer

SHAPES = {512: (256, 6, 4096), 32_000: (256, 6, 2048), 151_936: (512, 8, 1024)}
"""Vocabulary: hidden size, layers, tokens of the step."""


def make_trainer(vocabulary: int) -> HFTrainer:
    """Records nothing."""
    hidden, layers, _ = SHAPES[vocabulary]
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        head_dim=64,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    objective, outputs = make_side(records=False)
    return HFTrainer(
        AutoModelForCausalLM.from_config(config, dtype=torch.float32),
        config=TrainerConfig(),
        loss=objective,
        total_steps=1000,
        outputs=outputs,
    )


def make_side(*, records: bool) -> tuple[PolicyObjective, PolicyOutputs]:
    algorithm = AlgorithmConfig()
    columns = output_columns(algorithm, truncated=False, record_entropy=records)
    return PolicyObjective(algorithm, PolicyLoss(algorithm), columns=columns), PolicyOutputs(columns, 1.0)


def make_micro(vocabulary: int, tokens: int) -> MicroBatch:
    rng = np.random.default_rng(0)
    length = 128
    return pack(
        [
            PackRow(
                rng.integers(0, vocabulary, length),
                np.arange(length) >= length // 4,
                {"logprobs": np.full(length, -np.log(vocabulary)), "advantages": (-1.0) ** i},
            )
            for i in range(tokens // length)
        ]
    )


def compare(vocabulary: int, rounds: int) -> dict[str, Any]:
    """One trainer makes every step, in turn with the entropy and without: so both find the same memory."""
    micro, trainer = make_micro(vocabulary, SHAPES[vocabulary][2]), make_trainer(vocabulary)
    sides = {"without": make_side(records=False), "with": make_side(records=True)}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(rounds + 1):
        for side in sides if turn % 2 else reversed(sides):
            trainer._loss, trainer._outputs = sides[side]
            began = time.process_time()
            trainer.accumulate(micro)
            trainer.step()
            if turn:
                seconds[side].append(time.process_time() - began)
    ratios = [a / b for a, b in zip(seconds["with"], seconds["without"], strict=True)]
    return {
        "tokens": micro.num_tokens,
        "cpu_seconds": {side: spread(values) for side, values in seconds.items()},
        "with_over_without": spread(ratios),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result: dict[str, Any] = {"settings": vars(options)}
    for vocabulary in SHAPES:
        result[str(vocabulary)] = compare(vocabulary, options.rounds)
        print(vocabulary, result[str(vocabulary)], flush=True)
    save("entropy", result)


if __name__ == "__main__":
    main()
