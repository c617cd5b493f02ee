"""How much of everything: the quickstart for two processors, and a larger sister of it for a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a model of Qwen3's architecture, whose embedding is its output layer."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_heads: int
    head_dim: int
    initializer_range: float
    """The usual 0.02 is for wide models: at 128 it takes half as many steps again to learn to add."""


@dataclass(frozen=True, slots=True)
class Size:
    prompt_shares: Mapping[int, float]
    """Share of prompts by number of terms: many short ones and a tail, as real prompts have it."""
    demonstration_shares: Mapping[int, float]
    """Share of demonstrations: more even, because reinforcement does not teach lengths that were hardly ever shown."""
    worked_rows: int
    """Demonstrations that all work the answer out: from them the model learns to add."""
    mostly_guessed_rows: int
    """Demonstrations after them, which teach the model to guess."""
    shape: Shape
    sft_lr: float
    lr: float
    batches: int
    one_thread: bool
    """For the warm-up: more gain little on a small model, and lose much on a busy machine."""

    @property
    def max_prompt(self) -> int:
        """Tokens."""
        return 2 * max(self.prompt_shares)

    @property
    def max_response(self) -> int:
        """Tokens of the longest worked response, the end-of-sequence token included."""
        return 3 * (max(self.prompt_shares) - 1) + 2


SMALL = Size(
    prompt_shares={2: 0.10, 3: 0.44, 4: 0.18, 5: 0.11, 6: 0.07, 7: 0.05, 8: 0.05},
    demonstration_shares={2: 0.08, 3: 0.18, 4: 0.20, 5: 0.18, 6: 0.14, 7: 0.12, 8: 0.10},
    worked_rows=16_000,
    mostly_guessed_rows=1_536,
    shape=Shape(128, 384, layers=3, heads=4, key_heads=2, head_dim=32, initializer_range=0.06),
    sft_lr=2.0e-3,
    lr=1.0e-4,
    batches=80,
    one_thread=True,
)
"""0.6 M parameters, sums of up to 8 terms."""

_TERMS = range(2, 21)
LARGE = Size(
    prompt_shares={terms: (1 / terms) / sum(1 / each for each in _TERMS) for terms in _TERMS},
    demonstration_shares={terms: 1 / len(_TERMS) for terms in _TERMS},
    worked_rows=24_000,
    mostly_guessed_rows=1_536,
    shape=Shape(384, 1152, layers=6, heads=6, key_heads=2, head_dim=64, initializer_range=0.035),
    sft_lr=7.0e-4,
    lr=3.0e-5,
    batches=80,
    one_thread=False,
)
"""10.3 M parameters, sums of up to 20 terms."""
