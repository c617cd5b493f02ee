"""Running totals of what was generated: kept by rollout, read when a batch is recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class Tally:
    def __init__(self) -> None:
        self.samples = 0
        self.tokens = 0
        """Tokens that the policy chose, in samples that have ended."""
        self.failures: Counter[str] = Counter()
        """Failed samples by kind."""
        self.failure_words: dict[str, str] = {}
        """Why the last one of each kind failed; the last of all is at the end."""

    def count(self, samples: Iterable[tuple[int, str | None]]) -> None:
        """Add ended samples: (tokens that the policy chose, failure as `kind: detail` or None)."""
        for tokens, failure in samples:
            self.samples += 1
            self.tokens += tokens
            if failure is not None:
                kind, _, words = failure.partition(": ")
                self.failures[kind] += 1
                self.failure_words.pop(kind, None)
                self.failure_words[kind] = words
