"""The trainer's state on disk: safetensors and JSON, nothing that runs code when read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from headrace.training.protocol import CheckpointError

_FORMAT = 1
_TENSORS = "trainer.safetensors"
_RECORD = "trainer.json"


@dataclass(frozen=True, slots=True)
class TrainerRecord:
    """What is not a tensor."""

    step_count: int
    """Optimiser steps, also those whose gradient was not finite: the place in the learning-rate schedule."""
    updates: int
    """Updates of the optimiser, skipped steps left out: the t of its bias corrections."""


def write_state(path: Path, record: TrainerRecord, tensors: Mapping[str, Tensor]) -> None:
    """Write both files into the folder `path`, which is made if need be."""
    path.mkdir(parents=True, exist_ok=True)
    write_tensors(path / _TENSORS, tensors)
    text = json.dumps({"format": _FORMAT, **asdict(record)}, indent=2) + "\n"
    (path / _RECORD).write_text(text, encoding="utf-8")


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, file)


def read_record(path: Path) -> TrainerRecord:
    """Raises CheckpointError."""
    try:
        values = json.loads((path / _RECORD).read_text(encoding="utf-8"))
        if values.pop("format") != _FORMAT:
            raise ValueError(f"its format is not {_FORMAT}")
        record = TrainerRecord(**values)
        if not all(type(count) is int and count >= 0 for count in asdict(record).values()):
            raise ValueError("its counts are not whole numbers")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path / _RECORD} cannot be read ({error}); resume from another checkpoint") from error
    return record


def read_state(path: Path, wanted: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the folder `path`, as `read_tensors`."""
    yield from read_tensors(path / _TENSORS, wanted)


def read_some_state(path: Path, wanted: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """As `read_state`, of a folder that may hold more."""
    yield from read_tensors(path / _TENSORS, wanted, exactly=False)


def read_tensors(file: Path, wanted: Mapping[str, Tensor], *, exactly: bool = True) -> Iterator[tuple[str, Tensor]]:
    """The tensors saved under the names of `wanted`, one by one, on the CPU.

    Raises CheckpointError if the file is damaged, or does not hold these names (if `exactly`, no others), with these
    shapes and dtypes.
    """
    try:
        with safe_open(file, framework="pt") as saved:
            names = set(saved.keys())
            if names != wanted.keys() if exactly else not wanted.keys() <= names:
                odd = sorted(names ^ wanted.keys() if exactly else wanted.keys() - names)
                raise CheckpointError(
                    f"{file} is of another model: {len(odd)} tensors are in only one of the two ({odd[0]}, ...); "
                    "resume with the model that the run began with"
                )
            for name, target in wanted.items():
                tensor = saved.get_tensor(name)
                if tensor.shape != target.shape or tensor.dtype != target.dtype:
                    raise CheckpointError(
                        f"{file}: {name} is {tensor.dtype} {tuple(tensor.shape)}, the model's is {target.dtype} "
                        f"{tuple(target.shape)}; resume with the model that the run began with"
                    )
                yield name, tensor
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} is damaged ({error}); resume from another checkpoint") from error


def rng_tensors(device: torch.device) -> dict[str, Tensor]:
    """State of torch's generators, as uint8 tensors."""
    states = {"rng.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["rng.cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_rng(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["rng.cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["rng.cuda"], device)
