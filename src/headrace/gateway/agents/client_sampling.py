"""How a request is sampled where `gateway.sampling` is `client`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.engines.protocol import SamplingParams
from headrace.gateway.errors import ApiError
from headrace.gateway.fields import Fields
from headrace.gateway.requests import drawn_by
from headrace.rollout.policy import PolicySettings

CHOSEN = ("temperature", "top_p", "top_k", "min_p")
"""What a client decides; what else it gives is the run's."""
_ANY = 2**31 - 1


def client_sampling(given: Mapping[str, Any], policy: PolicySettings) -> SamplingParams:
    """That of the policy's episodes, but for what is `given`. Where tokens are cut and trained, a kept set has at most
    `policy.most_kept` ids. Raises ApiError."""
    fields = Fields(dict(given))
    if fields.number("min_p", 0.0, 0.0, 1.0) > 0:
        raise ApiError("min_p above 0 is what no engine here samples by; leave it out, or give top_p", param="min_p")
    sampling = drawn_by(fields, policy.sampling, policy.most_kept or _ANY)
    if not sampling.truncates:
        return sampling
    if policy.return_kept and not policy.engines.gives_kept_sets:
        raise ApiError(
            "the run's engine cannot say which tokens top_p and top_k keep, and without that nothing is trained as it "
            "was sampled; give top_p 1 and top_k 0",
            param="top_p" if sampling.top_p < 1 else "top_k",
        )
    return replace(sampling, top_k=sampling.top_k or policy.most_kept)
