"""Where an answer that went on in mode `keep` begins to be of new weights.

Its keys and values are of the old ones, so no model tells what its new tokens have for log-probs: but one that has just
the log-prob that the old model gives it was sampled by the old model, whatever its version is said to be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headrace.engines.conformance.subject import NotConforming, Subject
from headrace.engines.protocol import GenerateRequest, TokenChunk
from headrace.weights.version import Version

_BY_CHANCE = 1e-3
"""Two models may give a token the same log-prob. What is less likely than this is no chance."""


@dataclass(slots=True)
class Crossings:
    """Of a swap from `old` to `new`: first tokens that are said to be of new weights."""

    subject: Subject
    old: Version
    new: Version
    seen: int = 0
    as_before: int = 0
    """With the log-prob of the old model."""
    _tokens: int = 0
    _alike: int = 0
    """Of those: that both models give the same log-prob."""

    def add(self, request: GenerateRequest, answer: TokenChunk, place: int) -> None:
        """`place`: of its first token of new weights."""
        held, gap = self.subject.held, self.subject.largest_gap
        tokens, start = np.concatenate([request.prompt, answer.tokens], dtype=np.int32), len(request.prompt)
        rows = np.arange(start - 1, len(tokens) - 1)
        temperature = request.sampling.temperature or 1.0
        before, after = (
            self.subject.logprobs(held[version], tokens, temperature)[rows, answer.tokens]
            for version in (self.old, self.new)
        )
        self.seen += 1
        self.as_before += bool(abs(before[place] - answer.logprobs[place]) <= gap)
        self._tokens += len(rows)
        self._alike += int((np.abs(before - after) <= gap).sum())

    def judge(self) -> None:
        """Raises NotConforming if more of them are as the old model has them than chance explains."""
        share = (self._alike + 1) / (self._tokens + 2)
        if self.as_before and at_least(self.as_before, self.seen, share) < _BY_CHANCE:
            raise NotConforming(
                f"{self.as_before} of {self.seen} first tokens of {self.new} after a swap have the log-prob that the "
                f"model of {self.old} gives them"
            )


def at_least(count: int, of: int, share: float) -> float:
    """How likely so many are, where each is with probability `share`."""
    return sum(math.comb(of, n) * share**n * (1 - share) ** (of - n) for n in range(count, of + 1))
