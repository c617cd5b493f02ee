"""What samplers may answer, by float64, where float32 leaves a choice."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from engines_helpers import request
from numpy.typing import NDArray

from headrace.engines.embedded.noise import uniform
from headrace.engines.embedded.request_state import Sequence
from headrace.engines.embedded.sampler import Sampled, SamplingRows
from headrace.engines.embedded.slot_arrays import DecodeBatch

SLACK = 5e-6
"""Of a cumulated mass."""

Params = dict[str, Any]


def mixed(vocab: int) -> list[Params]:
    """Of rows, each cut in another way or not at all."""
    return [
        {},
        {"temperature": 0},
        {"top_k": 1},
        {"top_k": 50},
        {"top_k": vocab},
        {"top_p": 0.95},
        {"top_p": 1e-6},
        {"top_p": 0.9999},
        {"top_k": vocab, "top_p": 0.5},
        {"top_k": 20, "top_p": 0.8},
        {"temperature": 0.6, "top_p": 0.95},
        {"temperature": 1.7},
        {"temperature": 0, "top_k": 3},
    ]


def rows_of(
    params: list[Params], vocab: int, device: torch.device, first_key: int = 0
) -> tuple[SamplingRows, torch.Tensor]:
    """And the positions, as an engine gives them."""
    batch = DecodeBatch(len(params), vocab, device)
    batch.load([Sequence(request(f"r{i}", [0], key=first_key + i, **own), 64) for i, own in enumerate(params)])
    return batch.rows, batch.positions + 1


def faults(
    sampled: Sampled,
    logits: torch.Tensor,
    params: list[Params],
    rows: SamplingRows,
    positions: torch.Tensor,
    slack: float = SLACK,
) -> list[str]:
    """What is wrong with it. A cumulated mass may be `slack` more or less; log-probs are those of the set that was
    kept."""
    scaled = (logits / rows.temperature[:, None]).cpu().numpy()
    told = (uniform(rows.streams, positions), sampled.tokens, sampled.logprobs)
    draws, tokens, logprobs = (each.cpu().numpy() for each in told)
    found = []
    for i, own in enumerate(params):
        cut = bool(rows.truncated[i])
        count = 0 if sampled.kept is None else int(sampled.kept.counts[i])
        kept = set() if sampled.kept is None else set(sampled.kept.ids[i, :count].tolist())
        what = _fault(scaled[i], own, float(draws[i]), int(tokens[i]), float(logprobs[i]), kept if cut else None, slack)
        if (count > 0) != cut or len(kept) != count:
            what = f"{count} ids, {len(kept)} different ones, of a row that is {'' if cut else 'not '}truncated"
        if what:
            found.append(f"row {i}, {own}: {what}")
    return found


def _fault(
    scaled: NDArray[np.float32],
    params: Params,
    draw: float,
    token: int,
    logprob: float,
    kept: set[int] | None,
    slack: float,
) -> str:
    if not 0 <= token < len(scaled):
        return f"token {token}"
    if not np.isfinite(scaled.max()):
        return f"log-prob {logprob} of no distribution" if np.isfinite(logprob) else ""
    order = np.argsort(-scaled, kind="stable")
    if kept is None:
        among = np.arange(len(scaled))
    else:
        fewest, most = _bounds(scaled[order].astype(np.float64), params, slack)
        if not fewest <= len(kept) <= most:
            return f"{len(kept)} ids kept, not {fewest} to {most}"
        among = order[: len(kept)]
        if set(among.tolist()) != kept:
            return f"{sorted(set(among.tolist()) ^ kept)[:9]} are kept or left out by mistake"
    weights = np.exp(scaled[among].astype(np.float64) - scaled.max())
    weights /= weights.sum()
    (place,) = np.flatnonzero(among == token) if token in among else (-1,)
    if place < 0:
        return f"token {token} was not kept"
    if params.get("temperature") == 0:
        if scaled[token] != scaled.max() or token != scaled.argmax():
            return f"token {token}, not {scaled.argmax()}"
    elif not weights[:place].sum() - slack <= draw < weights[: place + 1].sum() + slack:
        return f"token {token}, not that of the draw {draw}"
    elif weights[place] == 0:
        return f"token {token} has no probability"
    if abs(logprob - np.log(weights[place])) > 1e-5:
        return f"log-prob {logprob}, not {np.log(weights[place])}"
    return ""


def _bounds(descending: NDArray[np.float64], params: Params, slack: float) -> tuple[int, int]:
    """How many may be kept."""
    top_k, top_p = params.get("top_k", 0), float(np.float32(params.get("top_p", 1.0)))
    of_k = descending[: top_k or None]
    of_k = of_k[of_k > -np.inf]
    if top_p >= 1:
        return len(of_k), len(of_k)
    weights = np.exp(of_k - of_k[0])
    before = (np.cumsum(weights) - weights) / weights.sum()
    fewest, most = (int((before < top_p + more).sum()) for more in (-slack, slack))
    return max(fewest, 1), max(most, 1)
