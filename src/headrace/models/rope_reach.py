"""Rotary embeddings whose angles depend on the longest of all samples that are computed together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

LONG = "longrope"
"""Beyond its reach it has other frequencies, for all samples of a pass: of a sample that is alone, other log-probs than
beside a longer one."""
_DYNAMIC = "dynamic"
"""Likewise, from the model's last position on."""


class Reach(NamedTuple):
    rope_type: str
    positions: int
    """Up to which the angles of a sample are the same whoever shares its pass."""

    @property
    def words(self) -> str:
        """Of the model, behind "whose"."""
        return (
            f"rotary embedding (rope_type: {self.rope_type}) is another one beyond {self.positions} positions, for all "
            "samples of a pass, however short"
        )


def rope_reach(rope: Any, places: int | None) -> Reach | None:
    """None where angles depend on positions alone. `rope`: the `rope_parameters` of a text model's config, of all
    layers or by their type; `places`: its `max_position_embeddings`."""
    if not isinstance(rope, Mapping):
        return None
    found = [_of(each, places) for each in rope.values() if isinstance(each, Mapping)] or [_of(rope, places)]
    return min((reach for reach in found if reach is not None), key=lambda reach: reach.positions, default=None)


def reach_of(config: Any) -> Reach | None:
    """As `rope_reach`, of a Hugging Face config."""
    text = config.get_text_config()
    return rope_reach(getattr(text, "rope_parameters", None), getattr(text, "max_position_embeddings", None))


def positions_of(config: Any) -> int | None:
    """Of a Hugging Face config: positions in which the model is one and the same; None where it has no last one."""
    places, reach = getattr(config.get_text_config(), "max_position_embeddings", None), reach_of(config)
    return places if reach is None or places is None else min(places, reach.positions)


def _of(rope: Mapping[str, Any], places: int | None) -> Reach | None:
    kind = rope.get("rope_type") or rope.get("type")
    last = {LONG: rope.get("original_max_position_embeddings") or places, _DYNAMIC: places}.get(str(kind))
    return None if last is None else Reach(str(kind), int(last))
