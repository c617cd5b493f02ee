"""Ranks that train one model together."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from headrace.config.base import Section

_SHORT = re.compile(r"(?:[dtmpcer][1-9][0-9]{0,3})+")
MICRO_BATCHES_A_STAGE = 4
"""So many micro-batches for each stage of a pipeline go through it in one call: of M micro-batches and p stages a rank
waits for the share (p - 1) / (M + p - 1) of the time while it fills and drains, a fifth or less here."""
_AXES = {"d": "dp", "t": "tp", "m": "tp", "p": "pp", "c": "cp", "e": "ep", "r": "replicas"}


class LayoutConfig(Section):
    """How many ranks there are along each axis: dp x pp x cp x tp in all. Short: `d2t2` (or `d2m2`) for {dp: 2, tp: 2},
    `d2c2` for {dp: 2, cp: 2}, `d2p2m1` for {dp: 2, pp: 2}."""

    dp: int = Field(default=1, ge=1, le=1024)
    """Data-parallel: each has its share of the rows; their gradients are added up before a step."""
    tp: int = Field(default=1, ge=1, le=64)
    """Tensor-parallel: each has a part of every layer's matrices, and of the vocabulary."""
    cp: int = Field(default=1, ge=1, le=64)
    """Context-parallel: each has a part of every micro-batch's tokens, and around attention of the heads."""
    pp: int = Field(default=1, ge=1, le=64)
    """Pipeline-parallel: each has some of the layers, and hands on what they make of each micro-batch."""
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    """With pp, in what order a rank takes micro-batches. `1f1b`: after the first ones a backward pass follows each
    forward pass, so that it keeps the activations of pp micro-batches at most. `gpipe`: all forward passes first, so
    that it keeps those of all micro-batches of a call, 4 pp. A call that has fewer than pp goes as by `gpipe`."""
    ep: int = Field(default=1, ge=1, le=1024)
    """Expert-parallel: so many of the ranks of data and context share the experts of each layer among them, and tokens
    go to whoever has their experts. No more ranks: it divides dp / replicas x cp. Tensor ranks share them in any case.
    Short: `d4e2`."""
    replicas: int = Field(default=1, ge=1, le=1024)
    """Of the ranks that cut the model up: so many groups of them have all of it each (HSDP), and heal each other. No
    more ranks: it divides dp. Short: `d4r2` for {dp: 4, replicas: 2}, two groups of two."""
    zero: Literal[0, 2, 3] | None = None
    """What ranks of data and context cut up among them, by FSDP2: 0 nothing, 2 gradients and the optimiser's state, 3
    weights as well. Unless given, 2 with pp, whose ranks would gather weights for each micro-batch anew, 3 where there
    are tp, cp, ep or replicas alone, else 0; with pp, tp, cp, ep or replicas it is 2 or 3."""

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        axes = re.findall(r"([a-z])([0-9]+)", given)
        names = [_AXES.get(letter, letter) for letter, _ in axes]
        if not _SHORT.fullmatch(given) or len(set(names)) < len(names):
            raise ValueError(f"{given!r} is no layout; write it as d2t2 (d, t or m, c, p, e, r), or {{dp: 2, tp: 2}}")
        return dict(zip(names, (int(count) for _, count in axes), strict=True))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.dp % self.replicas:
            fits = [each for each in range(1, self.dp + 1) if not self.dp % each]
            raise ValueError(
                f"replicas is {self.replicas}, and does not divide dp, {self.dp}; use {', '.join(map(str, fits))}"
            )
        if self.zero == 0 and self.replicas > 1:
            raise ValueError(
                f"replicas is {self.replicas}, and with zero: 0 each rank has all; leave replicas out, or use zero: 2 "
                "or 3"
            )
        if self.zero == 0 and (shared := self.tp * self.cp * self.pp * self.ep) > 1:
            raise ValueError(f"zero is 0, and tp x cp x pp x ep is {shared}; use zero: 2 or 3, or leave it out")
        if self.pp == 1 and self.schedule != "1f1b":
            raise ValueError(f"schedule is {self.schedule}, and without pp there is none; give pp, or leave it out")
        if (sharing := self.dp // self.replicas * self.cp) % self.ep:
            fits = [each for each in range(1, sharing + 1) if not sharing % each]
            what = "dp x cp" if self.replicas == 1 else "dp / replicas x cp"
            raise ValueError(f"ep is {self.ep}, and does not divide {what}, {sharing}; use {', '.join(map(str, fits))}")
        return self

    @property
    def stage(self) -> Literal[0, 2, 3]:
        """`zero`, also where it is not given."""
        if self.zero is None:
            return 2 if self.pp > 1 else 3 if self.tp * self.cp * self.ep * self.replicas > 1 else 0
        return self.zero

    @property
    def model_replicas(self) -> int:
        """How many ranks, or groups of them, have all of the model each."""
        return self.replicas if self.stage else self.dp

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.cp * self.pp

    @property
    def ranks_of_pp_stage(self) -> int:
        """Of one replica of the model, how many ranks have a stage of the pipeline among them."""
        return self.ranks // self.model_replicas // self.pp

    @property
    def budgets(self) -> int:
        """How many token budgets of a micro-batch one part of the data takes in one go."""
        return self.cp * (MICRO_BATCHES_A_STAGE * self.pp if self.pp > 1 else 1)

    def tokens_at_once(self, max_tokens: int) -> int:
        """Token budget of one pass of all ranks together, of micro-batches of `max_tokens`."""
        return max_tokens * self.dp * self.budgets

    @property
    def text(self) -> str:
        """As `d2t2, ZeRO-3`, or `d2p2 by 1f1b, ZeRO-2`."""
        axes = (
            *(("d", self.dp), ("r", self.replicas), ("t", self.tp), ("c", self.cp), ("e", self.ep)),
            ("p", self.pp),
        )
        named = "".join(f"{letter}{count}" for letter, count in axes if count > 1) or "d1"
        named += f" by {self.schedule}" if self.pp > 1 else ""
        return named if self.stage == 0 else f"{named}, ZeRO-{self.stage}"


def layers_of_stages(layers: int, stages: int, output: float) -> list[int]:
    """How many layers each stage of a pipeline has: so that the one with most to compute has as little as can be, where
    the output layer, which the last one has beside its layers, counts as `output` of them. Of several such cuts
    the one that leaves most to the last; the others are as even as can be, the first ones with one more."""
    if stages == 1:
        return [layers]
    others = stages - 1

    def most(last: int) -> float:
        return max(-(-(layers - last) // others), last + output)

    last = min(range(1, layers - others + 1), key=lambda last: (most(last), -last))
    share, more = divmod(layers - last, others)
    return [*(share + (stage < more) for stage in range(others)), last]
