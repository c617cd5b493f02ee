"""Choosing a sampler, and checking when an engine starts that it samples what torch's kernels sample."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from headrace.engines.embedded.noise import stream_of
from headrace.engines.embedded.sampler import Sampled, SamplingRows, sample
from headrace.models.memory_errors import memory_cause

logger = logging.getLogger(__name__)

Sample = Callable[[torch.Tensor, SamplingRows, torch.Tensor], Sampled]
"""See `sampler.sample`."""
_TOLERANCE = 1e-5
_WHOLE = ((1.0, 0, 1.0), (0.0, 0, 1.0), (0.7, 0, 1.0), (1.4, 0, 1.0))
_CUT = ((1.0, 5, 1.0), (1.0, 0, 0.8), (0.7, 12, 0.9), (1.4, 0, 0.95), (1.0, 1, 1.0), (1.0, 9, 0.4))
"""Temperature (0: greedy), top-k (0: no limit) and top-p of the rows that samplers are compared on."""
_LIKELY = 24
_FIRST_KEY = 3


def choose_sampler(vocab_size: int, device: torch.device) -> Sample:
    """By kernels of our own on a CUDA device where Triton is, and compiles them, and they agree with torch's.
    Raises what says that there is no memory: that says nothing of them."""
    if device.type != "cuda":
        return sample
    try:
        from headrace.engines.embedded.fused_sampling.fused_sampler import sample_fused

        what = difference(sample_fused, vocab_size, device)
        if what is None:
            return sample_fused
    except Exception as cause:  # whatever a compiler may say
        if memory_cause(cause) is not None:
            raise
        what = f"{type(cause).__name__}: {cause}"
    logger.warning("the engine samples with torch's kernels, not with its own for CUDA: %s", what)
    return sample


def difference(other: Sample, vocab_size: int, device: torch.device) -> str | None:
    """What `other` does not sample as `sample` does, on a few rows of which rounding decides nothing."""
    for limits in (_WHOLE, _WHOLE + _CUT, _CUT):
        logits, rows, positions = probe(limits, vocab_size, device)
        expected, found = sample(logits, rows, positions), other(logits, rows, positions)
        sound = torch.isfinite(expected.logprobs)
        if not torch.equal(torch.isfinite(found.logprobs), sound):
            return "it tells rows apart whose logits are not numbers from other ones"
        if not torch.equal(found.tokens[sound], expected.tokens[sound]):
            return f"its tokens are {found.tokens.tolist()}, not {expected.tokens.tolist()}"
        far = (found.logprobs - expected.logprobs)[sound].abs().max().item()
        if far > _TOLERANCE:
            return f"a log-prob of its is {far:.2g} away"
        if _kept_sets(found, sound) != _kept_sets(expected, sound):
            return "it keeps other ids"
    return None


def probe(
    limits: tuple[tuple[float, int, float], ...], vocab_size: int, device: torch.device
) -> tuple[torch.Tensor, SamplingRows, torch.Tensor]:
    """Float32 logits [n + 2, V], their rows and positions: one for each of the limits, then one with a NaN and one with
    an infinity, both with the last limits. A few logits, among them equal ones, have all of the mass."""
    count = min(_LIKELY, vocab_size)
    limits = (*limits, limits[-1], limits[-1])
    steps = torch.arange(count, device=device)
    logits = torch.full((len(limits), vocab_size), -40.0, device=device)
    for row, own in enumerate(logits):
        order = (steps * 7 + row) % count
        own[steps * (vocab_size // count)] = 3.0 - 0.3 * (order - order % 2)
    logits[-2, vocab_size // 2], logits[-1, vocab_size - 1] = torch.nan, torch.inf
    cut = [temperature > 0 and (k > 0 or p < 1) for temperature, k, p in limits]
    most = [min(k, vocab_size) or vocab_size for _, k, _ in limits]

    def of_rows(values: list[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    rows = SamplingRows(
        temperature=of_rows([temperature or 1.0 for temperature, _, _ in limits], torch.float32),
        greedy=of_rows([temperature == 0 for temperature, _, _ in limits], torch.bool),
        truncated=of_rows([*cut], torch.bool),
        top_k=of_rows([*most], torch.int64),
        top_p=of_rows([p for _, _, p in limits], torch.float32),
        streams=of_rows([stream_of(_FIRST_KEY + row) for row in range(len(limits))], torch.int64),
        some_greedy=any(temperature == 0 for temperature, _, _ in limits),
        some_scaled=True,
        some_truncated=any(cut),
        some_whole=not all(cut),
        most_kept=max((k for k, of_cut in zip(most, cut, strict=True) if of_cut), default=1),
    )
    return logits, rows, 11 * torch.arange(len(limits), device=device)


def _kept_sets(sampled: Sampled, those: torch.Tensor) -> list[set[int]]:
    if sampled.kept is None:
        return []
    counts, ids = sampled.kept.counts[those].tolist(), sampled.kept.ids[those].cpu()
    return [set(row[:count].tolist()) for row, count in zip(ids, counts, strict=True)]
