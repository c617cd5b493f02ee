"""Forward and backward over samples of mixed lengths: packed rows against padded rows, real tokens per second.

All sides compute the same sum of log-probs on the same model; their gradients are compared before anything is timed.
`padded`: all samples in one batch with an attention mask. `padded_sorted`: sorted by length, in batches of 8, the
better of the usual ways.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from benchmarks.machine import save, spread
from headrace.models.length_batches import SegmentPlan
from headrace.models.logprobs import token_logprobs
from headrace.models.packed_lm import PackedLM
from headrace.models.packing import PackRow, pack

RUNS = 5
PROMPT_SHARE = 0.25


def make_model(large: bool, dtype: torch.dtype) -> PreTrainedModel:
    """4.85 M parameters, or the 0.6 M of the quickstart."""
    config = Qwen3Config(
        vocab_size=512 if large else 32,
        hidden_size=256 if large else 128,
        intermediate_size=768 if large else 384,
        num_hidden_layers=6 if large else 3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64 if large else 32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def make_rows(lengths: Sequence[int], vocabulary: int) -> list[PackRow]:
    rng = np.random.default_rng(0)
    return [
        PackRow(rng.integers(3, vocabulary, length), np.arange(length) >= max(1, int(PROMPT_SHARE * length)))
        for length in lengths
    ]


def packed(model: PreTrainedModel, rows: list[PackRow]) -> Callable[[], None]:
    lm = PackedLM(model)
    return lambda: token_logprobs(lm, pack(rows)).sum().backward()


def padded(model: PreTrainedModel, rows: list[PackRow], rows_per_batch: int) -> Callable[[], None]:
    def run() -> None:
        for begin in range(0, len(rows), rows_per_batch):
            part = rows[begin : begin + rows_per_batch]
            longest = max(map(len, part))
            tokens, mask, present = (torch.zeros(len(part), longest, dtype=torch.int64) for _ in range(3))
            for line, row in enumerate(part):
                tokens[line, : len(row)] = torch.as_tensor(row.tokens)
                mask[line, : len(row)] = torch.as_tensor(row.mask)
                present[line, : len(row)] = 1
            logits = model(input_ids=tokens, attention_mask=present, use_cache=False).logits[:, :-1].float()
            chosen = torch.log_softmax(logits, -1).gather(2, tokens[:, 1:, None])[..., 0]
            (chosen * mask[:, 1:]).sum().backward()

    return run


def gradients(model: PreTrainedModel, run: Callable[[], None]) -> torch.Tensor:
    model.zero_grad()
    run()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def compare(large: bool, lengths: Sequence[int], dtype: torch.dtype) -> dict[str, object]:
    base = make_model(large, dtype)
    rows = make_rows(lengths, base.config.vocab_size)
    models = [base, copy.deepcopy(base), copy.deepcopy(base)]
    sides = {
        "packed": packed(models[0], rows),
        "padded": padded(models[1], rows, len(rows)),
        "padded_sorted": padded(models[2], sorted(rows, key=len), 8),
    }
    first, *others = (gradients(model, run) for model, run in zip(models, sides.values(), strict=True))
    difference = max(float((other - first).norm() / first.norm()) for other in others)
    assert difference < (1e-4 if dtype == torch.float32 else 5e-2), f"the sides disagree by {difference}"
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(RUNS):
        for name, run in sides.items():
            began = time.perf_counter()
            run()
            rates[name].append(sum(lengths) / (time.perf_counter() - began))
    medians = {name: spread(values)["median"] for name, values in rates.items()}
    plan = SegmentPlan.of(lengths, torch.device("cpu"))
    ordered = sorted(lengths)
    return {
        "samples": len(lengths),
        "tokens": sum(lengths),
        "gradient_difference": difference,
        "real_tokens_per_s": {name: spread(values) for name, values in rates.items()},
        "packed_over_padded": medians["packed"] / medians["padded"],
        "packed_over_padded_sorted": medians["packed"] / medians["padded_sorted"],
        "nonpad_share": {
            "packed": 1.0,
            "packed_inside_attention": sum(lengths) / len(plan.gather),
            "padded": sum(lengths) / (len(lengths) * max(lengths)),
            "padded_sorted": sum(lengths)
            / sum(len(ordered[i : i + 8]) * max(ordered[i : i + 8]) for i in range(0, len(ordered), 8)),
        },
    }


def main() -> None:
    rng = np.random.default_rng(0)
    workloads = {
        "4.85M, 32 samples of 16 to 256": (True, rng.integers(16, 257, 32).tolist()),
        "0.6M, 96 samples of 8 to 40, skewed": (False, np.clip(8 + rng.exponential(6, 96), 8, 40).astype(int).tolist()),
    }
    result: dict[str, object] = {"seed": 0, "runs": RUNS}
    for name, (large, lengths) in workloads.items():
        for dtype in (torch.float32, torch.bfloat16):
            for threads in (1, 2):
                torch.set_num_threads(threads)
                key = f"{name}, {str(dtype).removeprefix('torch.')}, {threads} threads"
                result[key] = compare(large, lengths, dtype)
                print(key, result[key], flush=True)
    save("packing", result)


if __name__ == "__main__":
    main()
