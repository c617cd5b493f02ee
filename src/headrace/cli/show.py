"""What `headrace train` prints when a run has ended."""

from __future__ import annotations

import shlex
from pathlib import Path

from headrace.cli.called_as import program
from headrace.config.evaluation import PLAIN
from headrace.controller.run_folder import Ended


def print_end(folder: Path, ended: Ended) -> None:
    run, called = ended.record, shlex.join(program())
    change = ""
    for name, evaluations in run.sets.items():
        scores = [evaluation.score for evaluation in evaluations if evaluation.score is not None]
        told = "held-out score" if name == PLAIN else evaluations[-1].label
        change += f", {told} {scores[0]:.3f} -> {scores[-1]:.3f}" if len(scores) > 1 else ""
    made = f"{run.number} batches recorded" if run.config.rollouts_only else f"v{run.number}"
    print(f"{ended.status}: {made} after {run.totals.elapsed_s:.1f} s{change}")
    if ended.status == "stopped":
        # The run's own config has the overrides in it.
        print(f"  continue with: {called} train {folder / 'config.yaml'} --dir {folder} --resume")
    if run.config.rollouts_only:
        print(f"  train on them with data.rollouts={folder}")
    elif run.number:
        print(f"  model:   {folder / 'checkpoints' / f'step_{run.number}' / 'model'}")
    if run.best is not None:
        told = f"v{run.best.number}, {run.best.metric} {run.best.value:.3f}"
        where = folder / "checkpoints" / "best" / "model" if run.best.folder else "the model that it began from"
        print(f"  best:    {where} ({told})")
    print(f"  summary: {folder / 'summary.json'}")
    print(f"  look at: {called} inspect {folder}")
