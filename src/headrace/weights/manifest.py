"""What a publication holds, and the check that what arrived is what was published."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping

import torch
from pydantic import TypeAdapter, ValidationError

from headrace.config.values.dtypes import dtype_name
from headrace.weights.plane import ALL, Manifest, Share, TensorEntry, WeightError
from headrace.weights.version import Version


def require_newer(version: Version, last: Version | None) -> None:
    """Raise WeightError unless `version` comes after `last`, the newest one published."""
    if last is not None and version <= last:
        why = "belongs to a branch that was left" if version.branch < last.branch else "is not newer"
        raise WeightError(f"cannot publish {version}: it {why}, {last} is published already")


def named_once(version: Version, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """`tensors` as they come. Raises WeightError at a name that came before, or if there are none."""
    names: set[str] = set()
    for name, tensor in tensors:
        if name in names:
            raise WeightError(f"cannot publish {version}: two tensors are named {name!r}")
        names.add(name)
        yield name, tensor
    if not names:
        raise WeightError(f"cannot publish {version}: there are no tensors")


def build_manifest(version: Version, tensors: Mapping[str, torch.Tensor], *, checksums: bool = True) -> Manifest:
    """The manifest of `tensors` in their order. Without `checksums`, none is computed: see `TensorEntry`."""
    return Manifest(
        version,
        tuple(
            TensorEntry(name, tuple(tensor.shape), dtype_name(tensor.dtype), checksum(tensor) if checksums else None)
            for name, tensor in tensors.items()
        ),
    )


def verify(manifest: Manifest, tensors: Mapping[str, torch.Tensor], source: str, share: Share = ALL) -> None:
    """Raise WeightError, naming `source` and the tensor, unless `tensors` are those of the manifest. `share`: of them,
    whose checksums are made."""
    surplus = tensors.keys() - {entry.name for entry in manifest.entries}
    if surplus:
        raise WeightError(f"{source} holds tensors that {manifest.version} does not list, as {min(surplus)!r}")
    for number, entry in enumerate(manifest.entries):
        tensor = tensors.get(entry.name)
        if tensor is None:
            raise WeightError(f"{source} lacks tensor {entry.name!r} of {manifest.version}")
        found = (tuple(tensor.shape), dtype_name(tensor.dtype))
        if found != (entry.shape, entry.dtype):
            raise WeightError(
                f"{source}: {entry.name!r} of {manifest.version} is {found[1]}{list(found[0])}, published as "
                f"{entry.dtype}{list(entry.shape)}"
            )
        if share.has(number) and entry.checksum is not None and checksum(tensor) != entry.checksum:
            raise WeightError(f"{source}: {entry.name!r} of {manifest.version} is damaged (checksum differs)")


def to_json(manifest: Manifest) -> bytes:
    return TypeAdapter(Manifest).dump_json(manifest)


def from_json(text: bytes, source: str) -> Manifest:
    """Inverse of `to_json`. Raises WeightError naming `source`."""
    try:
        return TypeAdapter(Manifest).validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise WeightError(f"{source} is no manifest: {where}: {first['msg']}") from error


def checksum(tensor: torch.Tensor) -> int:
    """CRC-32 of the contiguous bytes, copied from the device first where there is one."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().data)
