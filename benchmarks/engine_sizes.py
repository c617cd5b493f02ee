"""Tokens per second of the embedded engine at 90 M and 0.5 B parameters, against `generate` and vLLM's CPU build.

    python -m benchmarks.engine_sizes [--vllm-python PATH] [--runs 5] [--sizes 90M 0.5B] [--dtypes float32 bfloat16]

As `benchmarks.engine` has it: the sides take turns, each in a process of its own, with two threads. Models are Qwen3
and Qwen2 shapes with random weights; no token ends a sequence. Beside it, by the engine alone: the rate of its prefill,
of prompts of which each samples one token, as a share of the rate of matrix products, on the same thread in turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine import DTYPES, SETTLE_S, THREADS, OwnSide, Workload, compare
from benchmarks.machine import save, spread
from headrace.models.operations import matrix_rate

LOADS = {
    "90M": Workload(concurrent=32, prompt=256, max_new_tokens=96, stops=()),
    "0.5B": Workload(concurrent=16, prompt=128, max_new_tokens=32, stops=()),
}
VOCABULARY = {"90M": 32_000, "0.5B": 151_936}


def model_of(size: str) -> Any:
    """A model of transformers with random weights; float32."""
    from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    common: dict[str, Any] = {
        "vocab_size": VOCABULARY[size],
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
    }
    common |= {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
    if size == "90M":
        shape: dict[str, Any] = {"hidden_size": 640, "intermediate_size": 1920, "num_hidden_layers": 14, "head_dim": 64}
        shape |= {"num_attention_heads": 10, "num_key_value_heads": 2}
        return Qwen3ForCausalLM(Qwen3Config(**shape, **common))
    shape = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
    shape |= {"num_attention_heads": 14, "num_key_value_heads": 2}
    return Qwen2ForCausalLM(Qwen2Config(**shape, **common))


def arranging(own: OwnSide, runs: int) -> dict[str, Any]:
    """Seconds until a version's weights lie as the products want them, and that as a ratio to a copy of the same bytes.
    The engine does it beside its decode steps."""
    core = own.engine._core
    assert core is not None
    sides: dict[str, Callable[[], Any]] = {
        "copied_s": lambda: sum(tensor.clone().ndim for tensor in own.parameters.values()),  # one at a time
        "arranged_s": lambda: core._runner.prepare(own.parameters),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(runs + 1):
        for name, work in sides.items():
            began = time.perf_counter()
            own.compute(work)
            seconds[name].append(time.perf_counter() - began)
    found: dict[str, Any] = {name: spread(each[1:]) for name, each in seconds.items()}
    ratios = [a / b for a, b in zip(seconds["arranged_s"][1:], seconds["copied_s"][1:], strict=True)]
    return found | {"arranged_over_copied": spread(ratios)}


def prefill(folder: Path, size: str, dtype: str, runs: int) -> dict[str, Any]:
    """Prompt tokens a second, and as a share of the rate of matrix products, which is measured in turn; and what a
    version's weights cost."""
    load = Workload(LOADS[size].concurrent, LOADS[size].prompt, max_new_tokens=1, stops=())
    prompts = load.prompts(load.concurrent, VOCABULARY[size])
    own = OwnSide(folder, dtype, prompts, load)
    own.generate()
    weights = sum(w.numel() for name, w in own.parameters.items() if w.ndim == 2 and "embed" not in name)
    rates, shares = [], []
    for _ in range(runs):
        time.sleep(SETTLE_S)
        begin = time.perf_counter()
        own.generate()
        rates.append(prompts.size / (time.perf_counter() - begin))
        rate = own.compute(matrix_rate, torch.device("cpu"), getattr(torch, dtype))
        shares.append(2 * weights * rates[-1] / rate)
    arranged = arranging(own, runs)
    own.close()
    print(size, dtype, "arranged", arranged["arranged_s"]["median"], arranged["arranged_over_copied"]["median"])
    print(size, dtype, "prefill", round(statistics.median(rates)), round(statistics.median(shares), 3), flush=True)
    return {"tokens_per_s": spread(rates), "share_of_matrix_rate": spread(shares), "weights": arranged}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--vllm-python", default=os.environ.get("HEADRACE_VLLM_PYTHON"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--sizes", nargs="+", choices=[*LOADS], default=[*LOADS])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    args = parser.parse_args()
    torch.set_num_threads(1)  # a team of threads of this one's own would slow down the engine's
    with tempfile.TemporaryDirectory() as name:
        for size in args.sizes:
            folder, load, rows = Path(name) / size, LOADS[size], []
            model_of(size).save_pretrained(folder)
            prompts = load.prompts(load.concurrent, VOCABULARY[size])
            for dtype in args.dtypes:
                row: dict[str, Any] = {"size": size, "concurrent": load.concurrent, "prompt": load.prompt}
                row |= {"max_new_tokens": load.max_new_tokens}
                row |= compare(folder, dtype, prompts, load, args.runs, args.vllm_python)
                row["prefill"] = prefill(folder, size, dtype, args.runs)
                rows.append(row)
            save(f"engine_{size}", {"threads": THREADS, "runs": args.runs, "rows": rows})


if __name__ == "__main__":
    main()
