"""Requests that no engine could serve, and answers that nothing can be trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.config.values.temperature import TEMPERATURES, is_temperature
from headrace.engines.protocol import EngineError, GenerateRequest, RequestError
from headrace.weights.version import Version

_MOST_STOPS = 1024
"""Every decode step compares each sequence's token with as many as any one of them has."""
_LARGEST_ID = 2**31 - 1


def check_request(request: GenerateRequest, vocab_size: int, max_context: int) -> None:
    """Raises RequestError that names the value and the mend. What passes costs, at worst, its own sequence."""
    name, prompt = f"request {request.request_id!r}", request.prompt
    if not isinstance(prompt, np.ndarray) or prompt.ndim != 1 or len(prompt) == 0:
        shape = getattr(prompt, "shape", None) or type(prompt).__name__
        raise RequestError(f"{name}: the prompt is {shape}; give at least one token id, in an array of one dimension")
    if prompt.dtype.kind not in "iu":
        raise RequestError(f"{name}: the prompt has dtype {prompt.dtype}; token ids are integers")
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
    if not _is_whole(request.noise_key):
        raise RequestError(f"{name}: noise_key is {request.noise_key!r}; give a whole number")
    if not isinstance(request.min_version, Version | None):
        raise RequestError(f"{name}: min_version is {request.min_version!r}; give a Version, or None")
    begin = request.experts_from
    if begin is not None and not (_is_whole(begin) and 0 <= begin < len(prompt)):
        raise RequestError(
            f"{name}: experts_from is {begin!r}; give the place of a token of the prompt, from 0 to {len(prompt) - 1}"
        )
    _check_sampling(request, name)


def check_finite(name: str, tokens: NDArray[np.int32], logprobs: NDArray[np.float32]) -> None:
    """Of request `name`, arrays of one length. Raises EngineError."""
    bad = np.flatnonzero(~np.isfinite(logprobs))
    if len(bad):
        token, logprob = int(tokens[bad[0]]), float(logprobs[bad[0]])
        raise EngineError(f"request {name}: token {token} came with a log-prob of {logprob}, which is not finite")


def _check_sampling(request: GenerateRequest, name: str) -> None:
    sampling = request.sampling
    if not _is_whole(sampling.max_new_tokens) or sampling.max_new_tokens < 1:
        raise RequestError(f"{name}: max_new_tokens is {sampling.max_new_tokens!r}; ask for 1 or more")
    if not _is_number(sampling.temperature) or not is_temperature(sampling.temperature):
        raise RequestError(f"{name}: temperature is {sampling.temperature!r}; give {TEMPERATURES}")
    if not _is_number(sampling.top_p) or not 0 < sampling.top_p <= 1:
        raise RequestError(f"{name}: top_p is {sampling.top_p!r}; give more than 0 and at most 1")
    if not _is_whole(sampling.top_k) or not 0 <= sampling.top_k <= _LARGEST_ID:
        raise RequestError(f"{name}: top_k is {sampling.top_k!r}; give a whole number from 0 (no limit) to 2**31 - 1")
    stops = sampling.stop_token_ids
    if len(stops) > _MOST_STOPS:
        raise RequestError(f"{name}: {len(stops)} stop_token_ids; give at most {_MOST_STOPS}")
    for stop in stops:
        if not _is_whole(stop) or not 0 <= stop <= _LARGEST_ID:
            raise RequestError(f"{name}: stop_token_ids has {stop!r}; token ids are whole numbers from 0")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
