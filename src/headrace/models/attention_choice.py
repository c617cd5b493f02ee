"""Which way of computing attention in bfloat16 is the faster one on this CPU: measured once, and kept."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from headrace.models.blocked_attention import blocked_attention
from headrace.models.machine_measurements import Measure, cache_folder, kept_measurement, one_thread
from headrace.models.products import HAS_ONEDNN
from headrace.runtime.clock import processor_seconds

_SAMPLES, _HEADS, _KEY_HEADS, _WIDTH = 4, 4, 2, 64
_LENGTHS = (128, 384)
_TRIES = 4
_GAIN = 1.1
"""So many times as fast, or it stays with torch's own in float32."""
_FORMAT = 1


def blocks_are_faster(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `blocked_attention` is, forward and backward, than torch's own in float32. Blocking: half a second or
    so, the first time on a machine."""
    return device.type == "cpu" and dtype == torch.bfloat16 and HAS_ONEDNN and _on_cpu()


@cache
def _on_cpu() -> bool:
    return kept_gain(cache_folder(), measured) >= _GAIN


def kept_gain(folder: Path | None, measure: Measure) -> float:
    """See `kept_measurement`; 0 where it keeps nothing."""
    found = kept_measurement(folder, f"attention-bfloat16-{_FORMAT}", ("blocked_gain",), measure)
    return 0.0 if found is None else found[0]


def measured() -> dict[str, float]:
    """How many times as fast it is, by the geometric mean over two lengths; the ways in turn, each at its best."""
    own = torch.Generator().manual_seed(0)  # no model's draws depend on it
    gains = []
    with one_thread(), torch.inference_mode(False), torch.enable_grad():
        for length in _LENGTHS:
            q, k, v, grad = (
                torch.randn(_SAMPLES, heads, length, _WIDTH, generator=own).to(torch.bfloat16)
                for heads in (_HEADS, _KEY_HEADS, _KEY_HEADS, _HEADS)
            )
            best = {way: float("inf") for way in (_plain, _blocked)}
            for _ in range(1 + _TRIES):  # the first one finds its kernels
                for way in best:
                    states = [each.clone().requires_grad_() for each in (q, k, v)]
                    began = processor_seconds()
                    way(*states).backward(grad)
                    best[way] = min(best[way], processor_seconds() - began)
            gains.append(best[_plain] / best[_blocked])
    return {"blocked_gain": float(torch.tensor(gains).log().mean().exp())}


def _blocked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return blocked_attention(q, k, v, q.shape[-1] ** -0.5)


def _plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    made = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True, enable_gqa=True)
    return made.to(q.dtype)
