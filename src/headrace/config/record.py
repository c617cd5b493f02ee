"""What of a run is kept."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headrace.config.base import Section


class CheckpointConfig(Section):
    every: int = Field(default=20, ge=1)
    """Batches between checkpoints; one more is made at the end, and when the run is told to stop."""
    keep: int = Field(default=2, ge=1)
    """Newest checkpoints that are kept."""
    background: bool = True
    """Training goes on while a checkpoint is written, beside a copy in the host's memory: 12 bytes a parameter of all
    that is trained (`headrace check` counts it). False: no copy is made, and training waits until it is written."""
    keep_best: str | None = None
    """The checkpoint that is best on a held-out set is kept as well: name of the set and a metric of it, as `eval/mean`
    or `gsm/pass@1`; the set's first metric if none is named. Each version that the set is evaluated with then has a
    checkpoint. See docs/evaluation.md."""
    best_is: Literal["highest", "lowest"] = "highest"
    """Which value of that metric is the best."""


class RecordConfig(Section):
    rollouts: Annotated[int, Field(ge=0)] | Literal["all"] = 8
    """Samples of a batch that `headrace rollouts` finds for good: the best, the worst, and whole groups as they are
    drawn; and as many of what was dropped meanwhile. Those that failed are all kept, unless this is 0."""
    journal: Literal["needed", "all"] = "needed"
    """`all` keeps every finished group, so that `data.rollouts` can train on the record: 17 bytes a token of prompt and
    response, and the kept sets of `top_k` and `top_p`. `needed`: until no kept checkpoint could want it again."""

    @property
    def samples_per_batch(self) -> int | None:
        """None: all."""
        return None if self.rollouts == "all" else self.rollouts
