"""Whether ranks can share a pass over a model: each then has a part of the tokens, and of the logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.config import ConfigError
from headrace.models.packed_lm import PackedForward, PackedLM

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def require_shareable(lm: PackedLM) -> None:
    """Raises ConfigError for an architecture of another kind."""
    if lm.forward_kind is not PackedForward.SEGMENTS or not lm.has_plain_head:
        raise not_shareable(lm.model)


def not_shareable(model: PreTrainedModel) -> ConfigError:
    return ConfigError(
        f"layout shares passes among ranks (tp, cp), and {type(model).__name__} computes attention or its "
        "output in a way that cannot be shared; use tp: 1, cp: 1"
    )
