"""What a run begins from, if not from the model as it is."""

from __future__ import annotations

from pydantic import model_validator

from headrace.config.base import Section


class FromConfig(Section):
    run: str | None = None
    """Another run, whose weights become version 0 of this one: its folder, as `runs/a` for its last checkpoint or
    `runs/a@40` for that of version 40; the folder of a checkpoint; or what `headrace sft`, `rm` or `dpo` left. It must
    be of the model at `model.path`, whose tokenizer is used. The critic begins from that run's, if both have one.
    `headrace train --from` sets it."""
    optimizer: bool = False
    """Take the optimisers' moments too. The learning rate's schedule begins anew either way. `--from-optimizer` sets
    it."""

    @model_validator(mode="after")
    def _optimizer_of_a_run(self) -> FromConfig:
        if self.optimizer and self.run is None:
            raise ValueError(
                "optimizer is true, and run names none whose it is: give --from RUN (from.run), or drop it"
            )
        return self
