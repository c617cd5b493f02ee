"""Terms that are added to a policy loss, each times a coefficient of its own: KL to a reference, and entropy."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from headrace.algorithms import kl
from headrace.algorithms.losses.terms import Loss
from headrace.algorithms.segments import as_float, keep

KLTerm = Literal["k1", "k2", "k3", "abs", "k3+"]


def kl_term(logprobs: Tensor, reference: Tensor, mask: Tensor, *, kind: KLTerm = "k3") -> Loss:
    """An estimate of KL(policy || reference) at each token, `[N]`, to be minimised.

    `k1`, `k2`, `k3` and `abs` as `kl.estimate` gives them, differentiated as they stand (GRPO takes k3, Shao et al.
    2024, arXiv 2402.03300, eq. 4); `k3+` is `kl.k3_with_k2_gradient`. On tokens that the policy sampled, only the
    gradients of k2 and `k3+` are unbiased for the KL's; k1's is 0 on average. Gradients flow through `logprobs`
    alone.

    Stats: `tokens`; `kl` (sum of the values).
    """
    current, reference = keep(logprobs, mask), keep(reference.detach(), mask)
    if kind == "k3+":
        per_token = kl.k3_with_k2_gradient(current, reference)
    else:
        per_token = kl.estimate(current, reference, kind=kind)
    return Loss(per_token, {"tokens": mask.sum().to(current.dtype), "kl": per_token.detach().sum()})


def entropy(logits: Tensor, mask: Tensor) -> Loss:
    """Minus the entropy of softmax(logits `[N, V]`) at each token, `[N]`, in nats: minimised, it keeps exploring.

    Exact, over the whole vocabulary; a logit of -inf is a token that cannot be chosen, and adds nothing. Schulman
    et al. 2017, arXiv 1707.06347, eq. 9. Only rows inside the mask are computed.

    Stats: `tokens`; `entropy` (sum, above 0).
    """
    log_p = torch.log_softmax(as_float(logits[mask]), dim=-1)
    possible = log_p > -torch.inf
    # Not a product with -inf: its gradient would be NaN.
    negative = (log_p.exp() * torch.where(possible, log_p, torch.zeros_like(log_p))).sum(-1)
    per_token = negative.new_zeros(mask.shape).masked_scatter(mask, negative)
    return Loss(per_token, {"tokens": mask.sum().to(negative.dtype), "entropy": -negative.detach().sum()})
