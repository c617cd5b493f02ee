"""Requests that no engine could serve."""

from __future__ import annotations

import numpy as np

from headrace.engines.protocol import GenerateRequest, RequestError


def check_request(request: GenerateRequest, vocab_size: int, max_context: int) -> None:
    """Raises RequestError that names the value and the mend."""
    name, prompt, sampling = f"request {request.request_id!r}", request.prompt, request.sampling
    if prompt.ndim != 1 or len(prompt) == 0:
        raise RequestError(f"{name}: the prompt has shape {prompt.shape}; give at least one token id, in one dimension")
    outside = np.flatnonzero((prompt < 0) | (prompt >= vocab_size))
    if len(outside):
        raise RequestError(
            f"{name}: token id {int(prompt[outside[0]])} at position {int(outside[0])} is outside the vocabulary; "
            f"ids go from 0 to {vocab_size - 1}"
        )
    if len(prompt) >= max_context:
        raise RequestError(
            f"{name}: the prompt has {len(prompt)} tokens and the context {max_context}, which leaves no room for a "
            "response; shorten the prompt or raise engine.max_context"
        )
    if sampling.max_new_tokens < 1:
        raise RequestError(f"{name}: max_new_tokens is {sampling.max_new_tokens}; ask for 1 or more")
    if not 0 <= sampling.temperature < float("inf"):
        raise RequestError(f"{name}: temperature is {sampling.temperature}; give 0 (greedy) or more")
    if not 0 < sampling.top_p <= 1:
        raise RequestError(f"{name}: top_p is {sampling.top_p}; give more than 0 and at most 1")
    if sampling.top_k < 0:
        raise RequestError(f"{name}: top_k is {sampling.top_k}; give 0 (no limit) or more")
