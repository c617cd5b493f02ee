"""The trainer's state on disk: safetensors and JSON, nothing that runs code when read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headrace.config.values.dtypes import SAFETENSORS_NAMES, dtype_name
from headrace.models.parted_files import FileTensor, PartedFiles
from headrace.training.pieces import Piece
from headrace.training.protocol import CheckpointError

_WHOLE, _PARTED = 1, 2
"""Formats: of a state in one file, and of one in a file of each rank."""
_TENSORS = "trainer.safetensors"
_RECORD = "trainer.json"
WEIGHTS = "weights.safetensors"
"""The file of weights alone."""
_BOXES = "boxes"
"""Key of a part's metadata: of each of its tensors the shape of the whole, and where it begins, as JSON."""
_RNG = "rng."
_DTYPES = {SAFETENSORS_NAMES[dtype_name(dtype)]: dtype for dtype in (torch.float32, torch.float16, torch.bfloat16)}
"""By the names of safetensors: those that a state may have."""


@dataclass(frozen=True, slots=True)
class TrainerRecord:
    """What is not a tensor."""

    step_count: int
    """Optimiser steps, also those whose gradient was not finite: the place in the learning-rate schedule."""
    updates: int
    """Updates of the optimiser, skipped steps left out: the t of its bias corrections."""
    parts: int = 1
    """Ranks that wrote a file each."""


def write_part(path: Path, rank: int, ranks: int, state: Mapping[str, Piece], rng: Mapping[str, Tensor]) -> Path:
    """The tensors of one of several ranks, or of the only one, into a file of its own in the folder `path`, which is
    there; the record is the first one's."""
    metadata = {}
    if ranks > 1:
        state = {name: piece for name, piece in state.items() if piece.is_first and piece.tensor.numel()}
        metadata[_BOXES] = json.dumps({name: [piece.whole, piece.begin] for name, piece in state.items()})
    tensors = {**{name: piece.tensor for name, piece in state.items()}, **rng}
    file = _files(path, ranks)[rank]
    write_tensors(file, tensors, metadata)
    return file


def read_boxes(file: Path) -> dict[str, dict[str, list[int]]]:
    """Of what `write_part` wrote there: see `Digest.boxes`. Raises OSError, SafetensorError."""
    with safe_open(file, framework="pt") as saved:
        told = json.loads((saved.metadata() or {}).get(_BOXES, "{}"))
        return {
            name: {"whole": whole, "begins": begins, "shape": saved.get_slice(name).get_shape()}
            for name, (whole, begins) in told.items()
        }


def write_record(path: Path, record: TrainerRecord) -> None:
    """Into the folder `path`, which is there."""
    values = asdict(record)
    if record.parts == 1:
        del values["parts"]
    text = json.dumps({"format": _WHOLE if record.parts == 1 else _PARTED, **values}, indent=2) + "\n"
    (path / _RECORD).write_text(text, encoding="utf-8")


def write_tensors(file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """One after another: none is copied whole, and other threads go on meanwhile, as with safetensors' own writer they
    do not."""
    told = [FileTensor.of_whole(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()]
    files = PartedFiles(told, file.name, metadata=metadata or {})
    files.finish(file.parent)
    files.write(file.parent, ((name, (0,) * tensor.dim(), tensor.detach()) for name, tensor in tensors.items()))


def read_record(path: Path) -> TrainerRecord:
    """Raises CheckpointError."""
    try:
        values = json.loads((path / _RECORD).read_text(encoding="utf-8"))
        known = {_WHOLE: {"step_count", "updates"}, _PARTED: {"step_count", "updates", "parts"}}
        if values.keys() - {"format"} != known.get(values.pop("format")):
            raise ValueError(f"its format is neither {_WHOLE} nor {_PARTED}")
        record = TrainerRecord(**values)
        if not all(type(count) is int and count >= 0 for count in asdict(record).values()):
            raise ValueError("its counts are not whole numbers")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path / _RECORD} cannot be read ({error}); resume from another checkpoint") from error
    return record


def read_state(path: Path, record: TrainerRecord, into: Mapping[str, Piece], *, exactly: bool = True) -> None:
    """Fill the pieces with what ranks saved into the folder `path`, however it was cut up among them.

    Raises CheckpointError if a file is damaged, or they do not hold these names (if `exactly`, no others) in these
    shapes and dtypes, whole; what was filled then is of no use.
    """
    missing = {name: piece.tensor.numel() for name, piece in into.items()}
    others: set[str] = set()
    for file in _files(path, record.parts):
        try:
            with safe_open(file, framework="pt") as saved:
                boxes = json.loads((saved.metadata() or {}).get(_BOXES, "{}"))
                for name in saved.keys():  # noqa: SIM118 - no mapping
                    if name.startswith(_RNG):
                        continue
                    if name not in into:
                        others.add(name)
                        continue
                    missing[name] -= _fill(into[name], saved.get_slice(name), boxes.get(name), f"{file}: {name}")
        except (OSError, SafetensorError, ValueError, TypeError) as error:
            raise CheckpointError(f"{file} is damaged ({error}); resume from another checkpoint") from error
    odd = sorted([name for name, left in missing.items() if left] + (sorted(others) if exactly else []))
    if odd:
        raise CheckpointError(
            f"{path} is of another model: {len(odd)} tensors are in only one of the two ({odd[0]}, ...); "
            "resume with the model that the run began with"
        )


def _fill(piece: Piece, saved: Any, box: Any, what: str) -> int:
    """How many numbers of the piece came. `saved`: a tensor's slice. `box`: the shape of the whole, and where it begins
    there; None: it is the whole."""
    shape = tuple(saved.get_shape())
    whole, begin = (shape, (0,) * len(shape)) if box is None else (tuple(box[0]), tuple(box[1]))
    dtype = _DTYPES.get(saved.get_dtype())
    if whole != piece.whole or dtype != piece.tensor.dtype:
        raise CheckpointError(
            f"{what} is {dtype} {whole}, the model's is {piece.tensor.dtype} {piece.whole}; "
            "resume with the model that the run began with"
        )
    if not shape:
        piece.tensor.copy_(saved[...])
        return 1
    common = piece.common(begin, shape)
    if common is None:
        return 0
    came = saved[tuple(slice(each.start - b, each.stop - b) for each, b in zip(common, begin, strict=True))]
    piece.tensor[piece.within(common)].copy_(came)
    return came.numel()


def _files(path: Path, parts: int) -> list[Path]:
    return [path / _TENSORS] if parts == 1 else [path / _part(rank, parts) for rank in range(parts)]


def _part(rank: int, ranks: int) -> str:
    return f"trainer-{rank}-of-{ranks}.safetensors"


def read_rng(path: Path, record: TrainerRecord, rank: int, into: Mapping[str, Tensor]) -> None:
    """Fill in the generators' states of this rank, or of the last that saved one. Raises CheckpointError."""
    file = _files(path, record.parts)[min(rank, record.parts - 1)]
    for name, saved in read_tensors(file, into, exactly=False):
        into[name].copy_(saved)


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


def read_weights(path: Path, wanted: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """What `SavedWeights` wrote, as `read_tensors`."""
    yield from read_tensors(path / WEIGHTS, wanted)


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
