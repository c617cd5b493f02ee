"""Attention of packed rows in bfloat16 on a CPU: by blocks of queries against torch's kernel in float32.

    python -m benchmarks.attention_blocks [--runs 7]

Forward and backward, the sides in turn, with two threads: batches of samples of one length, as many as the trainer's
benchmark has at 144 and 352 tokens, and long ones. Beside the seconds: how far each side is from float64 over the same
numbers, as a share of the norm, of what comes out and of the gradients of queries, keys and values.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.machine import save, spread
from headrace.models.blocked_attention import blocked_attention

THREADS, WIDTH = 2, 64
SHAPES = ((64, 4, 2, 144), (16, 10, 2, 352), (4, 14, 2, 1024), (1, 14, 2, 4096))
"""Samples, heads, key heads, tokens."""
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def in_float(q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    made = F.scaled_dot_product_attention(q.to(dtype), k.to(dtype), v.to(dtype), is_causal=True, enable_gqa=True)
    return made.to(q.dtype)


def in_blocks(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return blocked_attention(q, k, v, WIDTH**-0.5)


def run(attention: Attention, states: list[Tensor], grad: Tensor) -> tuple[float, list[Tensor]]:
    given = [each.detach().requires_grad_() for each in states]
    began = time.perf_counter()
    out = attention(*given)
    out.backward(grad)
    seconds = time.perf_counter() - began
    return seconds, [out.detach(), *(each.grad for each in given if each.grad is not None)]


def compare(shape: tuple[int, int, int, int], runs: int) -> dict[str, Any]:
    samples, heads, key_heads, tokens = shape
    torch.manual_seed(0)
    *states, grad = (
        torch.randn(samples, tokens, count, WIDTH).to(torch.bfloat16).transpose(1, 2)
        for count in (heads, key_heads, key_heads, heads)
    )
    sides: dict[str, Attention] = {"float32": in_float, "blocks": in_blocks}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    found: dict[str, list[Tensor]] = {}
    for turn in range(runs + 1):
        for name, attention in sides.items():
            took, found[name] = run(attention, states, grad)
            if turn:
                seconds[name].append(took)
    few = [each[:2].double() for each in (*states, grad)]
    _, exact = run(partial(in_float, dtype=torch.float64), few[:3], few[3])
    far = {
        name: [float((a[:2].double() - b).norm() / b.norm()) for a, b in zip(parts, exact, strict=True)]
        for name, parts in found.items()
    }
    ratios = [a / b for a, b in zip(seconds["blocks"], seconds["float32"], strict=True)]
    print(shape, "blocks / float32:", round(spread(ratios)["median"], 2), flush=True)
    row = {"samples": samples, "heads": heads, "key_heads": key_heads, "tokens": tokens, "from_float64": far}
    return row | {"seconds": {name: spread(each) for name, each in seconds.items()}, "share": spread(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    rows = [compare(shape, args.runs) for shape in SHAPES]
    save("attention_blocks", {"threads": THREADS, "runs": args.runs, "rows": rows})


if __name__ == "__main__":
    main()
