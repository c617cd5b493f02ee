"""Ranks that train one model together."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from headrace.config.base import Section

_SHORT = re.compile(r"(?:[dtmpc][1-9][0-9]{0,3})+")
_AXES = {"d": "dp", "t": "tp", "m": "tp", "p": "pp", "c": "cp"}


class LayoutConfig(Section):
    """How many ranks there are along each axis: dp x cp x tp in all. Short: `d2t2` (or `d2m2`) for {dp: 2, tp: 2},
    `d2c2` for {dp: 2, cp: 2}."""

    dp: int = Field(default=1, ge=1, le=1024)
    """Data-parallel: each has its share of the rows; their gradients are added up before a step."""
    tp: int = Field(default=1, ge=1, le=64)
    """Tensor-parallel: each has a part of every layer's matrices, and of the vocabulary."""
    cp: int = Field(default=1, ge=1, le=64)
    """Context-parallel: each has a part of every micro-batch's tokens, and around attention of the heads."""
    zero: Literal[0, 2, 3] | None = None
    """What ranks of data and context cut up among them, by FSDP2: 0 nothing, 2 gradients and the optimiser's state, 3
    weights as well. Unless given, 3 where there are tp or cp, which need one of the two, else 0."""

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        axes = re.findall(r"([a-z])([0-9]+)", given)
        names = [_AXES.get(letter, letter) for letter, _ in axes]
        if not _SHORT.fullmatch(given) or len(set(names)) < len(names):
            raise ValueError(f"{given!r} is no layout; write it as d2t2 (d, t or m, c), or {{dp: 2, tp: 2}}")
        found = dict(zip(names, (int(count) for _, count in axes), strict=True))
        if (stages := found.pop("pp", 1)) > 1:
            raise ValueError(f"{given!r} has {stages} pipeline stages, and each rank has all layers; use p1")
        return found

    @model_validator(mode="after")
    def _cut_up_for_sharing(self) -> Self:
        if self.zero == 0 and self.tp * self.cp > 1:
            raise ValueError(f"zero is 0, and tp x cp is {self.tp * self.cp}; use zero: 2 or 3, or leave it out")
        return self

    @property
    def stage(self) -> Literal[0, 2, 3]:
        """`zero`, also where it is not given."""
        if self.zero is None:
            return 3 if self.tp * self.cp > 1 else 0
        return self.zero

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.cp

    @property
    def text(self) -> str:
        """As `d2t2, ZeRO-3`."""
        axes = (("d", self.dp), ("t", self.tp), ("c", self.cp))
        named = "".join(f"{letter}{count}" for letter, count in axes if count > 1) or "d1"
        return named if self.stage == 0 else f"{named}, ZeRO-{self.stage}"
