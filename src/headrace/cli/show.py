"""What `headrace train` prints when a run has ended."""

from __future__ import annotations

import shlex
from pathlib import Path

from headrace.cli.program import program
from headrace.controller.train import Ended


def print_end(folder: Path, ended: Ended) -> None:
    run, called = ended.record, shlex.join(program())
    scores = [evaluation.score for evaluation in run.evaluations if evaluation.score is not None]
    change = f", held-out score {scores[0]:.3f} -> {scores[-1]:.3f}" if len(scores) > 1 else ""
    made = f"{run.number} batches recorded" if run.config.rollouts_only else f"v{run.number}"
    print(f"{ended.status}: {made} after {run.totals.elapsed_s:.1f} s{change}")
    if ended.status == "stopped":
        # The run's own config has the overrides in it.
        print(f"  continue with: {called} train {folder / 'config.yaml'} --dir {folder} --resume")
    if run.config.rollouts_only:
        print(f"  train on them with data.rollouts={folder}")
    elif run.number:
        print(f"  model:   {folder / 'checkpoints' / f'step_{run.number}' / 'model'}")
    print(f"  summary: {folder / 'summary.json'}")
    print(f"  look at: {called} inspect {folder}")
