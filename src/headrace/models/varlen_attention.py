"""Attention over samples of any lengths in one call, without filling, by torch's kernel for CUDA devices."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.models.memory_errors import memory_cause
from headrace.models.prefixes import SharedPrefixes
from headrace.models.varied_lengths import VariedLengths

Attend = Callable[[Tensor, Tensor, Tensor, VariedLengths, float, int | None], Tensor]
"""(queries [U, H, D], keys and values [M, K, D], which of them belong together, factor of the scores, window) to
[U, H, D]; differentiable once. A query sees itself and the window - 1 keys before it, all if None."""

logger = logging.getLogger(__name__)
_DTYPES = (torch.bfloat16, torch.float16)
_PROBE = (70, 130, 3)
"""Tokens of samples of which the second begins as the first does."""
_PROBE_SHARED, _PROBE_WINDOW = 64, 33
_TOLERANCE = 8
"""Times the dtype's rounding, of the largest value: what a kernel may be off."""


def varlen_attention(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Attend | None:
    """For [U, H, D], [M, K, D] and [M, K, E]; None where no kernel computes it."""
    if q.device.type != "cuda" or q.dtype not in _DTYPES or v.shape[-1] != q.shape[-1]:
        return None
    return _checked(q.device, q.dtype, (q.shape[1], k.shape[1], q.shape[2]), window is not None)


def by_torch(q: Tensor, k: Tensor, v: Tensor, lengths: VariedLengths, scale: float, window: int | None) -> Tensor:
    """See `Attend`. Raises NotImplementedError where this version of torch cannot be told the scale or the window,
    ImportError where it has no such kernel."""
    kernel, takes = _kernel()
    given: dict[str, Any] = {}
    if "window_size" in takes:
        given["window_size"] = (-1 if window is None else window - 1, 0)
    elif window is None:
        given["is_causal"] = True
    else:
        raise NotImplementedError("this version of torch has no window for samples of several lengths")
    if "scale" in takes:
        given["scale"] = scale
    elif scale != q.shape[-1] ** -0.5:
        raise NotImplementedError("this version of torch scales scores of samples of several lengths by itself")
    if "enable_gqa" in takes:
        given["enable_gqa"] = q.shape[1] != k.shape[1]
    ends = lengths.queries, lengths.keys, lengths.most_queries, lengths.most_keys
    made: Tensor = kernel(q, k, v, *ends, **given)
    return made


@cache
def _kernel() -> tuple[Callable[..., Any], frozenset[str]]:
    """And the names of what it takes, of which each version of torch has others."""
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn, frozenset(inspect.signature(varlen_attn).parameters)


def one_by_one(q: Tensor, k: Tensor, v: Tensor, lengths: VariedLengths, scale: float, window: int | None) -> Tensor:
    """See `Attend`: written out, for comparison."""
    made = []
    for sample in range(len(lengths.queries) - 1):
        asks, seen = (slice(*ends[sample : sample + 2].tolist()) for ends in (lengths.queries, lengths.keys))
        rows, columns = (torch.arange(part.stop - part.start, device=q.device) for part in (asks, seen))
        ahead = columns - rows[:, None] - (len(columns) - len(rows))
        hidden = (ahead > 0) if window is None else (ahead > 0) | (ahead <= -window)
        each = q.shape[1] // k.shape[1]
        keys, values = (states[seen].repeat_interleave(each, dim=1) for states in (k, v))
        scores = torch.einsum("nhd,mhd->hnm", q[asks], keys) * scale
        made.append(torch.einsum("hnm,mhd->nhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), values))
    return torch.cat(made)


@cache
def _checked(device: torch.device, dtype: torch.dtype, sizes: tuple[int, int, int], is_windowed: bool) -> Attend | None:
    """Out of memory it raises, and is asked again: that says nothing of the kernel."""
    try:
        error = disagreement(by_torch, device, dtype, sizes, _PROBE_WINDOW if is_windowed else None)
    except Exception as cause:  # whatever a kernel may say to these sizes
        if memory_cause(cause) is not None:
            raise
        what = f"{type(cause).__name__}: {cause}"
    else:
        if error <= 1.0:
            return by_torch
        what = f"it is {error:.1f} times the tolerance away from what it should be"
    logger.warning("attention over packed samples goes by samples of like length, not all in one call: %s", what)
    return None


def disagreement(
    attend: Attend, device: torch.device, dtype: torch.dtype, sizes: tuple[int, int, int], window: int | None
) -> float:
    """Of its result and gradients with `one_by_one` in float32, in units of what is allowed. `sizes`: heads, key heads,
    and their width. No model's draws depend on it."""
    heads, key_heads, width = sizes
    own = torch.Generator().manual_seed(0)
    tokens = np.arange(sum(_PROBE))
    tokens[_PROBE[0] :][:_PROBE_SHARED] = tokens[:_PROBE_SHARED]
    lengths = VariedLengths.of(_PROBE, device, SharedPrefixes.of(tokens, _PROBE))
    assert lengths.source is not None
    counts = int(lengths.queries[-1]), int(lengths.keys[-1])
    # A pass that is checkpointed would hear of what is saved here, and compute it again.
    unseen = torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
    with torch.inference_mode(False), torch.enable_grad(), unseen:
        states = [
            torch.randn(count, some, width, generator=own).to(device, dtype)
            for count, some in ((counts[0], heads), (counts[1], key_heads), (counts[1], key_heads))
        ]
        grad = torch.randn(states[0].shape, generator=own).to(device, dtype)
        found = []
        for way, kind in ((attend, dtype), (one_by_one, torch.float32)):
            q, k, v = (each.to(kind).requires_grad_() for each in states)
            made = way(q, k, v, lengths, width**-0.5, window)
            made.backward(grad.to(kind))
            found.append([made.detach(), *(each.grad for each in (q, k, v) if each.grad is not None)])
    allowed = _TOLERANCE * torch.finfo(dtype).eps
    errors = [(mine - wanted).abs().max() / (allowed * wanted.abs().max()) for mine, wanted in zip(*found, strict=True)]
    worst = torch.stack(errors).max().item()
    return worst if math.isfinite(worst) else math.inf
