"""Logits to tokens by kernels of our own: what `sampler.sample` does, on a CUDA device."""

from __future__ import annotations

import torch

from headrace.engines.embedded.fused_sampling import triton_sampling as kernels
from headrace.engines.embedded.fused_sampling.triton_masses import BUCKETS
from headrace.engines.embedded.sampler import Kept, Sampled, SamplingRows

_SLICE, _TILE = 16384, 2048
"""Tokens that a program looks at, and those at once."""
_LEAST_SLICES = 16
"""For which kernels are compiled: 2^18 tokens."""
_WARPS = 8


def sample_fused(logits: torch.Tensor, rows: SamplingRows, positions: torch.Tensor) -> Sampled:
    """See `sampler.sample`. Kept ids are int32, in order of ids. Nothing here waits for the device, and it can be
    captured in a graph.

    It rounds otherwise: masses are integers (`triton_sampling.py`), so that a set is the smallest with mass >= top p
    of masses rounded by 2^-40 of the greatest, in whatever order they are added. A greedy row's token is that with the
    greatest logit, also where another one has the same probability in float32.
    """
    logits = logits.contiguous()
    count, vocab = logits.shape
    parts = -(-vocab // _SLICE)
    slices = max(1 << (parts - 1).bit_length(), _LEAST_SLICES)
    of_tile = {"TILE": _TILE, "num_warps": _WARPS}
    of_slices = of_tile | {"SLICE": _SLICE}
    peaks = torch.empty((count, parts), dtype=torch.int64, device=logits.device)
    counts = peaks.new_empty((count, parts, BUCKETS.value), dtype=torch.int32)
    masses = torch.empty_like(counts, dtype=torch.int64)
    tokens, logprobs = peaks.new_empty(count), logits.new_empty(count)
    scaled = (logits, rows.temperature)
    drawn = (rows.streams, positions, peaks, masses)
    kernels.find_peaks[count, parts](*scaled, peaks, vocab, **of_slices)
    kernels.weigh[count, parts](*scaled, rows.truncated, peaks, counts, masses, vocab, SLICES=slices, **of_slices)
    if rows.some_whole:
        kernels.choose_of_all[(count,)](
            *scaled, rows.greedy, rows.truncated, *drawn, tokens, logprobs, vocab, parts, SLICES=slices, **of_slices
        )
    if not rows.some_truncated:
        return Sampled(tokens, logprobs)
    limits = (rows.truncated, rows.top_k, rows.top_p)
    keys, ids = (counts.new_empty(count, vocab) for _ in range(2))
    candidates = (keys, ids, counts.new_empty(count))
    kept = Kept(counts.new_empty(count, rows.most_kept), torch.zeros_like(tokens))
    kernels.gather[count, parts](
        *scaled, *limits, peaks, counts, masses, *candidates, vocab, SLICES=slices, **of_slices
    )
    kernels.choose_kept[(count,)](
        *limits,
        *drawn,
        *candidates,
        tokens,
        logprobs,
        kept.ids,
        kept.counts,
        vocab,
        parts,
        rows.most_kept,
        SLICES=slices,
        **of_tile,
    )
    return Sampled(tokens, logprobs, kept)
