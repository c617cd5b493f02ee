"""Sampling by the engine's own kernels beside torch's, at the vocabulary of Qwen2.5."""

from __future__ import annotations

import statistics
from typing import Any

import torch

from benchmarks.gpu.shapes import VOCABULARY
from headrace.engines.embedded.noise import stream_of
from headrace.engines.embedded.sampler import SamplingRows, sample

_STEPS = 8
"""Sampled one after another in a round, as an engine does between two looks."""
_SPREAD = 3.0
"""Standard deviation of the logits, which are normal."""


def sampling_row(rows: int, top_k: int, top_p: float, runs: int) -> dict[str, Any]:
    """Of `rows` sequences; without limits where top_k is 0 and top_p 1. Sides in turn; the first round is not
    counted. Where there is no Triton, this raises ImportError."""
    from headrace.engines.embedded.fused_sampling.fused_sampler import sample_fused

    torch.manual_seed(0)
    device = torch.device("cuda")
    logits = torch.randn(rows, VOCABULARY, device=device) * _SPREAD
    those, positions = _rows(rows, top_k, top_p, device), torch.arange(rows, device=device)
    seconds: dict[str, list[float]] = {"torch": [], "fused": []}
    for round_ in range(runs + 1):
        for side, sampler in (("torch", sample), ("fused", sample_fused)):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            for _ in range(_STEPS):
                sampler(logits, those, positions)
            end.record()
            torch.cuda.synchronize()
            if round_:
                seconds[side].append(begin.elapsed_time(end) / 1e3 / _STEPS)
    ratios = [theirs / ours for theirs, ours in zip(seconds["torch"], seconds["fused"], strict=True)]
    return {
        "rows": rows,
        "top_k": top_k,
        "top_p": top_p,
        "torch_ms": statistics.median(seconds["torch"]) * 1e3,
        "fused_ms": statistics.median(seconds["fused"]) * 1e3,
        "ratio": statistics.median(ratios),
    }


def _rows(count: int, top_k: int, top_p: float, device: torch.device) -> SamplingRows:
    cut, most = top_k > 0 or top_p < 1, top_k or VOCABULARY
    return SamplingRows(
        temperature=torch.ones(count, device=device),
        greedy=torch.zeros(count, dtype=torch.bool, device=device),
        truncated=torch.full((count,), cut, device=device),
        top_k=torch.full((count,), most, device=device),
        top_p=torch.full((count,), top_p, device=device),
        streams=torch.tensor([stream_of(i) for i in range(count)], device=device),
        some_greedy=False,
        some_scaled=False,
        some_truncated=cut,
        some_whole=not cut,
        most_kept=most if cut else 1,
    )
