"""Losses of the log-prob itself, with no ratio: REINFORCE, supervised tokens, a teacher's."""

from __future__ import annotations

from torch import Tensor

from headrace.algorithms import kl
from headrace.algorithms.losses.terms import Loss
from headrace.algorithms.segments import keep


def reinforce(logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Loss:
    """-A log pi, all `[N]` (Williams 1992). Gradients flow through `logprobs` alone.

    Stats: `tokens`; `logprob` (sum).
    """
    current = keep(logprobs, mask)
    return _loss(-keep(advantages.detach(), mask) * current, current, mask)


def sft(logprobs: Tensor, mask: Tensor) -> Loss:
    """-log pi of the tokens given, `[N]`: cross-entropy. Stats as of `reinforce`."""
    current = keep(logprobs, mask)
    return _loss(-current, current, mask)


def distillation(logprobs: Tensor, teacher: Tensor, mask: Tensor) -> Loss:
    """log pi - log teacher at tokens that pi sampled, `[N]`: reverse KL to the teacher, one estimate per token.

    On-policy distillation (Agarwal et al. 2023, arXiv 2306.13649; Lu et al. 2025, "On-Policy Distillation"). The
    value is k1, which is unbiased and can be negative; the gradient is (log pi - log teacher) grad log pi, that of
    the reverse KL at the token's position (k1's own would be grad log pi, which teaches nothing), the same as of
    `reinforce` with `distillation_advantages`. Gradients flow through `logprobs` alone.

    Stats as of `reinforce`, and `kl` (sum of the values).
    """
    current, teacher = keep(logprobs, mask), keep(teacher.detach(), mask)
    value = kl.estimate(current, teacher, kind="k1").detach()
    gradient = kl.estimate(current, teacher, kind="k2")
    loss = _loss(value + (gradient - gradient.detach()), current, mask)
    return Loss(per_token=loss.per_token, stats=loss.stats | {"kl": value.sum()})


def distillation_advantages(logprobs: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """log teacher - log pi, `[N]`, a constant: what distillation is to a loss that takes advantages per token.

    `logprobs` are of the policy whose reverse KL is to fall: the proximal one, or the behaviour policy's where the
    surrogate's ratio is against it.
    """
    return keep(teacher.detach(), mask) - keep(logprobs.detach(), mask)


def _loss(per_token: Tensor, current: Tensor, mask: Tensor) -> Loss:
    stats = {"tokens": mask.sum().to(current.dtype), "logprob": current.detach().sum()}
    return Loss(per_token=per_token, stats=stats)
