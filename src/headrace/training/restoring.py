"""Has a trainer go on from a state of another place: of a checkpoint, of another run, of another replica."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from headrace.runtime.progress import working
from headrace.training.optimizer.trained_weights import TrainedWeights
from headrace.training.replicas import Replicas
from headrace.training.state import read_record, read_rng, read_state, restore_rng, rng_tensors


def restore(path: Path, weights: TrainedWeights, rank: int, device: torch.device) -> int:
    """Have all that ranks saved into the folder `path`, generators included. The optimiser's steps until then. Raises
    CheckpointError."""
    record, rng = read_record(path), rng_tensors(device)
    read_state(path, record, weights.state(to_fill=True))
    read_rng(path, record, rank, rng)
    restore_rng(rng, device)
    weights.publish()
    weights.updates = record.updates
    return record.step_count


def begin_from(path: Path, weights: TrainedWeights, *, masters: bool, optimizer: bool) -> None:
    """See `Trainer.begin_from`."""
    parts = [*(["master"] if masters else []), *(["exp_avg", "exp_avg_sq"] if optimizer else [])]
    record, told = read_record(path), weights.state(to_fill=True)
    state = {name: piece for name, piece in told.items() if name.partition(".")[0] in parts}
    if optimizer:
        weights.updates = record.updates
    read_state(path, record, state, exactly=False)
    weights.publish()


def share(
    weights: TrainedWeights, steps: int, beside: Sequence[Tensor], others: Replicas, replica: int, device: torch.device
) -> int:
    """Have what this replica has, generators included, in all of them: by all ranks. `steps`: the optimiser's, of this
    rank; those of all from now on are given back. `beside`: what else there is to have. Raises RuntimeError."""
    gives = others.replica == replica
    counts = torch.tensor([steps, weights.updates])
    state, rng = weights.state(to_fill=not gives), rng_tensors(device)
    tensors = [piece.tensor for piece in state.values()]
    with working("chunk"):
        others.tell([counts, *tensors, *beside, *rng.values()], replica)
    if not gives:
        restore_rng(rng, device)
        weights.publish()
        steps, weights.updates = counts.tolist()
    return steps
