"""What a simulated engine answers: tokens and lengths that follow from the request alone.

The token at a place, and whether it is the last one, is a function of the request's noise key and of the place in
prompt + response: an answer that is cut off, and asked for again with what there is of it, goes on as it would have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.engines.protocol import GenerateRequest
from headrace.models.simulated import stream_of, uniform

_OF_LENGTH, _OF_END, _OF_TOKEN = 1, 2, 3
"""Streams of one key."""


@dataclass(frozen=True, slots=True)
class Answers:
    """How long answers are: geometric about a mean that is drawn anew for each, log-normal, which gives the tail."""

    mean_tokens: float = 200.0
    """Median of the means."""
    spread: float = 0.5
    """Standard deviation of the logarithm of the means; 0: all are the same."""
    vocab_size: int = 1_000
    first_token: int = 16
    """Smaller ids are never sampled, but for those that stop."""

    def left(self, request: GenerateRequest, most: int) -> int | None:
        """How many tokens the answer still has, the one that ends it included; None if it has more than `most`."""
        if not request.sampling.stop_token_ids:
            return None
        places = len(request.prompt) + np.arange(most)
        ends = uniform(stream_of(request.noise_key, _OF_END), places) * self._mean(request.noise_key) < 1.0
        return int(ends.argmax()) + 1 if ends.any() else None

    def tokens(self, request: GenerateRequest, begin: int, end: int, *, ended: bool) -> NDArray[np.int32]:
        """Of places `begin` to `end` (exclusively) of prompt + response; the last one stops it if it has `ended`."""
        drawn = uniform(stream_of(request.noise_key, _OF_TOKEN), np.arange(begin, end))
        tokens = (self.first_token + drawn * (self.vocab_size - self.first_token)).astype(np.int32)
        if ended and len(tokens):
            tokens[-1] = request.sampling.stop_token_ids[0]
        return tokens

    def _mean(self, key: int) -> float:
        if not self.spread:
            return max(self.mean_tokens, 1.0)
        one, two = uniform(stream_of(key, _OF_LENGTH), np.arange(2)).tolist()
        normal = math.sqrt(-2 * math.log(1 - one)) * math.cos(2 * math.pi * two)
        return max(self.mean_tokens * math.exp(self.spread * normal), 1.0)
