"""Log-probs of the proximal policy, which anchors the trust region, without a forward pass of its own."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from headrace.algorithms.segments import as_float

Kind = Literal["recompute", "loglinear", "behavior", "current"]


def logprobs(
    kind: Kind,
    *,
    current: Tensor,
    behavior: Tensor,
    recomputed: Tensor | None = None,
    versions: Tensor | None = None,
    proximal_version: int | None = None,
    current_version: float | None = None,
) -> Tensor:
    """Proximal log-probs `[N]`, without a gradient.

    - `recompute`: those given as `recomputed`, of a forward pass under the weights that the batch began with.
    - `loglinear`: `loglinear(...)`, from `versions` (of the tokens) and the two versions.
    - `behavior`: the behaviour policy's (PPO as if tokens were fresh: ratio and clip are against the sampler).
    - `current`: the policy being differentiated (the ratio is 1 and the clip inert: one step per batch).

    Raises ValueError when what the kind needs is not given, or the kind is unknown.
    """
    if kind == "current":
        return as_float(current.detach())
    if kind == "behavior":
        return as_float(behavior.detach())
    if kind == "recompute":
        if recomputed is None:
            raise ValueError("proximal 'recompute' needs the recomputed log-probs; add the stage that writes them")
        return as_float(recomputed.detach())
    if kind == "loglinear":
        if versions is None or proximal_version is None or current_version is None:
            raise ValueError("proximal 'loglinear' needs versions, proximal_version and current_version")
        return loglinear(
            current, behavior, versions, proximal_version=proximal_version, current_version=current_version
        )
    raise ValueError(f"kind is {kind!r}; use 'recompute', 'loglinear', 'behavior' or 'current'")


def loglinear(
    current: Tensor, behavior: Tensor, versions: Tensor, *, proximal_version: int, current_version: float
) -> Tensor:
    """log b + a (log c - log b) with a = (proximal - v) / (current - v), limited to [0, 1], `[N]`.

    AReaL's approximation (its documentation, "Proximal Log-Probability Approximation"), with v the version that
    sampled the token, b the behaviour and c the current policy. AReaL takes current_version - 1 as the proximal
    one. Here that of a batch k is version k, and after j of its U steps the current one is k + j/U.

    Exact at a token whose v is `proximal_version` (a = 0: the behaviour policy is the proximal one), where
    `proximal_version` is `current_version` (a = 1), where the token's log-prob did not move (b = c), and where it
    moved by the same amount with every version; anywhere else it is an interpolation, off by as much as the path of
    the log-prob bends. Tokens sampled at or after the proximal version, and those without a version (-1: not
    chosen by the policy), get a = 0.

    Raises ValueError unless proximal_version <= current_version.
    """
    if proximal_version > current_version:
        raise ValueError(f"proximal_version is {proximal_version}, after current_version {current_version}")
    current, behavior = as_float(current.detach()), as_float(behavior.detach())
    behind = (proximal_version - versions).clamp(min=0).to(current.dtype)
    distance = (current_version - versions).clamp(min=1).to(current.dtype)
    share = torch.where(versions >= 0, behind / distance, torch.zeros_like(behind))
    return torch.where(share == 1, current, behavior + share * (current - behavior))
