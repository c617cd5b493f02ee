"""A run that goes on with a config of another length."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from headrace.controller.planning.plan import Plan
from headrace.store import ConfigMismatch, RunReader
from headrace.store.media.files import Files


def resumed_plan(plan: Plan, folder: Path, files: Files) -> Plan:
    """`plan` of a run that goes on in `folder`, where there is one. Raises ConfigMismatch if the run is past the end
    that the config gives it."""
    with RunReader(folder, files) as run:
        done, groups, begun = run.committed(), run.settled_groups(), run.begun_epochs()
    trainer, batch = plan.config.trainer, plan.config.rollout.prompts_per_batch
    if trainer.batches is not None:
        if trainer.batches < done:
            raise ConfigMismatch(
                f"trainer.batches is {trainer.batches}, and {folder} has trained {done} batches already: give {done} "
                "or more, or begin another run with --dir"
            )
        return plan
    if trainer.epochs < begun:
        raise ConfigMismatch(
            f"trainer.epochs is {trainer.epochs}, and {folder} has begun epoch {begun}: give {begun} or more, or begin "
            "another run with --dir"
        )
    # The last batch of what was then the last epoch may have been short: more epochs then make one batch more.
    left = max(len(plan.prompts) * trainer.epochs - groups, 0)
    return replace(plan, total_batches=max(plan.total_batches, done + math.ceil(left / batch)))
