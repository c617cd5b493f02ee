"""Prompts, rewards and filters."""

from __future__ import annotations

from pydantic import Field

from headrace.config.base import Section


class DataConfig(Section):
    train: str
    """JSONL file, one prompt a line."""
    eval: str | None = None
    """JSONL file of held-out prompts."""
    prompt_column: str = "prompt"
    """Column with the prompt: text, or a list of chat messages (then the tokenizer's chat template is applied)."""
    id_column: str | None = None
    """Column with a stable prompt id; the line number unless given."""
    shuffle: bool = True
    """Shuffle each epoch, seeded by the run's seed."""


class RewardConfig(Section):
    function: str = "exact"
    """`exact`, `numeric`, `regex`, `math`, or a function of yours: `path.py:function` or `module:function`."""
    answer_column: str = "answer"
    """Column with what the built-in rewards compare with (for `regex`, the pattern)."""
    timeout_s: float = Field(default=10.0, gt=0)
    """A reward that takes longer fails its sample, and its process is killed."""
    workers: int = Field(default=1, ge=1, le=256)
    """Child processes that score samples."""
    tolerance: float = Field(default=1e-6, ge=0)
    """`numeric`: absolute or relative difference that still counts as equal."""
