"""What kept sets cost: a whole step, generation and training, at top-p 0.9, top-k 512, with a vocabulary of 32,000.

Three sides in turn, on the same prompts, lengths and noise: `whole`, sampled from the whole vocabulary; `cut`, sampled
under truncation, but the sets neither handed out nor used, so that the trainer's log-probs are of another distribution
than the engine's; `kept`, exactly. The head's weights are scaled to give sets of about the mean size asked for.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from benchmarks.machine import save, spread
from headrace.algorithms.kept_sets import joined
from headrace.algorithms.policy_loss import PolicyLoss
from headrace.config import EngineConfig
from headrace.config.algorithm import AlgorithmConfig
from headrace.config.trainer import TrainerConfig
from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.protocol import GenerateRequest, SamplingParams
from headrace.models.packing import PackRow, pack, plan_microbatches
from headrace.runtime.inline import InlineRuntime
from headrace.training.objective import PolicyObjective, PolicyOutputs, output_columns
from headrace.training.trainer import HFTrainer

VOCABULARY, PROMPT = 32_000, 32
SIDES: dict[str, dict[str, Any]] = {
    "whole": {},
    "cut": {"top_p": 0.9, "top_k": 512},
    "kept": {"top_p": 0.9, "top_k": 512},
}


def make_model(hidden: int, layers: int, scale: float) -> Any:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        head_dim=64,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(scale)
    return model


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.runtime = InlineRuntime()
        self.engine = EmbeddedEngine(
            make_model(options.hidden, options.layers, options.scale),
            config=EngineConfig(max_concurrent_sequences=options.samples),
            runtime=self.runtime,
        )
        algorithm = AlgorithmConfig()
        self.trainers = {}
        for side in SIDES:
            columns = output_columns(algorithm, truncated=side == "kept", record_entropy=False)
            self.trainers[side] = HFTrainer(
                make_model(options.hidden, options.layers, options.scale),
                config=TrainerConfig(),
                loss=PolicyObjective(algorithm, PolicyLoss(algorithm), columns=columns),
                total_steps=1000,
                outputs=PolicyOutputs(columns, 1.0),
            )

    async def generate(self, side: str) -> list[PackRow]:
        sampling = SamplingParams(max_new_tokens=self.options.new_tokens, **SIDES[side])
        rng = np.random.default_rng(0)

        async def row(i: int) -> PackRow:
            prompt = rng.integers(0, VOCABULARY, PROMPT).astype(np.int32)
            request = GenerateRequest(f"{side}{i}", prompt, sampling, noise_key=i, return_kept=side == "kept")
            chunks = [chunk async for chunk in self.engine.generate(request)]
            tokens = np.concatenate([prompt, *(chunk.tokens for chunk in chunks)])
            columns: dict[str, Any] = {
                "logprobs": np.concatenate([np.zeros(PROMPT), *(chunk.logprobs for chunk in chunks)]),
                "advantages": (-1.0) ** i,
            }
            kept = joined([None, *(chunk.kept for chunk in chunks)], [PROMPT, *(len(c.tokens) for c in chunks)])
            return PackRow(tokens, np.arange(len(tokens)) >= PROMPT, columns, kept)

        return list(await asyncio.gather(*(row(i) for i in range(self.options.samples))))

    def train(self, side: str, rows: list[PackRow]) -> float:
        """Mean |log ratio| of the first pass: what the trainer finds between itself and the engine."""
        trainer = self.trainers[side]
        for places in plan_microbatches([len(row) for row in rows], self.options.micro_tokens):
            trainer.accumulate(pack([rows[place] for place in places]))
        report = trainer.step()
        return report.stats["mismatch_abs"] / report.stats["tokens"]


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    bench = Bench(options)
    await bench.engine.start()
    seconds: dict[str, dict[str, list[float]]] = {side: {"generate": [], "train": [], "step": []} for side in SIDES}
    result: dict[str, Any] = {}
    for turn in range(options.rounds + 1):
        for side in SIDES:
            began = time.perf_counter()
            rows = await bench.generate(side)
            generated = time.perf_counter()
            mismatch = bench.train(side, rows)
            ended = time.perf_counter()
            if turn == 0:  # warm-up, and the only one whose weights the engine has too
                result[f"mismatch_{side}"] = mismatch
                if side == "kept":
                    result |= _sizes(rows)
                continue
            seconds[side]["generate"].append(generated - began)
            seconds[side]["train"].append(ended - generated)
            seconds[side]["step"].append(ended - began)
    await bench.engine.stop()
    await bench.runtime.close()
    result["seconds"] = {side: {part: spread(values) for part, values in of.items()} for side, of in seconds.items()}
    for other in ("cut", "whole"):
        for part in ("generate", "train", "step"):
            ratios = [a / b for a, b in zip(seconds["kept"][part], seconds[other][part], strict=True)]
            result[f"{part}_kept_over_{other}"] = spread(ratios)
    return result


def _sizes(rows: list[PackRow]) -> dict[str, float]:
    kept = [row.kept for row in rows if row.kept is not None]
    tokens = sum(int((sets.counts > 0).sum()) for sets in kept)
    return {
        "mean_set_size": sum(int(sets.counts.sum()) for sets in kept) / tokens,
        "largest_set": max(int(sets.counts.max()) for sets in kept),
        "bytes_a_token": sum(sets.data.nbytes for sets in kept) / tokens + 4,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--scale", type=float, default=16.0, help="of the head's weights")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--micro-tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    result = {"settings": vars(options), **asyncio.run(measure(options))}
    print(result)
    save("kept_sets", result)


if __name__ == "__main__":
    main()
