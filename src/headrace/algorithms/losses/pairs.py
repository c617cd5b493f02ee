"""Losses of a chosen and a rejected sample: preference optimisation, and the ranking of a reward model.

A pair is the two samples of one index in `pair_index` `[S]`; `chosen` `[S]` (bool) tells which is which. Their order
is free, and a pair must be whole within a call.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from headrace.algorithms.losses.terms import PairLoss
from headrace.algorithms.segments import add_up, as_float, keep, rows_of

Preference = Literal["dpo", "ipo"]


def preference(
    logprobs: Tensor,
    reference: Tensor,
    mask: Tensor,
    sample_index: Tensor,
    pair_index: Tensor,
    chosen: Tensor,
    *,
    beta: float,
    kind: Preference = "dpo",
    label_smoothing: float = 0.0,
    per_length: bool = False,
) -> PairLoss:
    """Loss per pair `[P]`, from log-probs `[N]` of the policy and the reference.

    With h = (log pi / reference of the chosen sample) - (that of the rejected one), each summed over the sample's
    tokens inside the mask, or averaged with `per_length`:

    - `dpo`: -log sigmoid(beta h) (Rafailov et al. 2023, arXiv 2305.18290, eq. 7); with `label_smoothing` e, that
      times 1 - e, plus e times -log sigmoid(-beta h) (Mitchell 2023, "A note on DPO with noisy preferences").
    - `ipo`: (h - 1 / (2 beta))^2 (Azar et al. 2023, arXiv 2310.12036, eq. 17, beta being its tau). The sum is the
      paper's; TRL averages (`per_length`).

    Row i of `pair_index` and `chosen` `[S]` belongs to the i-th sample of `sample_index`. Gradients flow through
    `logprobs` alone.

    Stats: `pairs`; `correct` (pairs with h > 0); `margin` (sum of beta h); `chosen` and `rejected` (sums of beta
    times a side's part of h).

    Raises ValueError unless beta > 0 and 0 <= label_smoothing < 1/2 (0 for ipo), or for an index that is not one
    chosen and one rejected sample.
    """
    if not beta > 0:
        raise ValueError(f"beta is {beta}; use more than 0")
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"label_smoothing is {label_smoothing}; use 0 to below 0.5")
    # The difference first: sums of log-probs are large, and their difference small.
    log_ratio = keep(logprobs, mask) - keep(reference.detach(), mask)
    sample = rows_of(sample_index, pair_index.numel())
    gained = add_up(log_ratio, sample, pair_index.numel())
    if per_length:
        gained = gained / add_up(mask.to(log_ratio.dtype), sample, pair_index.numel()).clamp(min=1)
    first, second = (gained[rows] for rows in _pairs(pair_index, chosen))
    h = first - second
    if kind == "dpo":
        per_pair = -(1 - label_smoothing) * logsigmoid(beta * h) - label_smoothing * logsigmoid(-beta * h)
    elif kind == "ipo":
        if label_smoothing:
            raise ValueError(f"label_smoothing is {label_smoothing}; ipo has none, use 0")
        per_pair = (h - 1 / (2 * beta)).square()
    else:
        raise ValueError(f"kind is {kind!r}; use 'dpo' or 'ipo'")
    stats = _stats(beta * h) | {
        "chosen": beta * first.detach().sum(),
        "rejected": beta * second.detach().sum(),
    }
    return PairLoss(per_pair, stats)


def reward_ranking(scores: Tensor, pair_index: Tensor, chosen: Tensor, *, margin: float = 0.0) -> PairLoss:
    """-log sigmoid(score of the chosen - score of the rejected - margin), per pair `[P]`, from scores `[S]`.

    Bradley & Terry 1952; Ouyang et al. 2022, arXiv 2203.02155, eq. 1; the margin, Touvron et al. 2023, arXiv
    2307.09288, eq. 2.

    Stats: `pairs`; `correct` (pairs whose chosen sample scores higher); `margin` (sum of the differences).

    Raises ValueError for an index that is not one chosen and one rejected sample.
    """
    scores = as_float(scores)
    first, second = (scores[rows] for rows in _pairs(pair_index, chosen))
    difference = first - second
    return PairLoss(-logsigmoid(difference - margin), _stats(difference))


def _stats(difference: Tensor) -> dict[str, Tensor]:
    difference = difference.detach()
    return {
        "pairs": difference.new_tensor(difference.numel()),
        "correct": (difference > 0).sum().to(difference.dtype),
        "margin": difference.sum(),
    }


def _pairs(pair_index: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of the chosen and of the rejected samples, `[P]` each, both in the order of the pairs' indices."""
    sides = []
    for side in (chosen.bool(), ~chosen.bool()):
        rows = side.nonzero().squeeze(1)
        sides.append(rows[pair_index[rows].argsort()])
    index, first, second = pair_index.unique(), pair_index[sides[0]], pair_index[sides[1]]
    if not (torch.equal(first, index) and torch.equal(second, index)):
        odd = [int(pair) for pair in index if int((first == pair).sum()) != 1 or int((second == pair).sum()) != 1]
        raise ValueError(f"pairs {odd} have not one chosen and one rejected sample each; keep pairs whole")
    return sides[0], sides[1]
