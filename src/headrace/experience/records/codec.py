"""Finished groups to bytes and back: the payload of the journal's records.

msgpack, little-endian arrays as [dtype, length, bytes]. Decoding trusts nothing: every field's type is checked, and
no dtype is taken from the bytes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeVar, cast

import msgpack
import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.kept_sets import KeptSets
from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus

FORMAT = 2
"""First item of every record; grows when the layout changes."""

_MAX_DEPTH = 32
_COLUMNS = {
    "tokens": np.dtype("<i4"),
    "loss_mask": np.dtype("|b1"),
    "logprobs": np.dtype("<f4"),
    "versions": np.dtype("<i4"),
    "branches": np.dtype("<i4"),
}
_WITH_TEMPERATURES = {**_COLUMNS, "temperatures": np.dtype("<f4")}
"""Of a sample whose tokens have their own."""
_COUNTS, _DATA = np.dtype("<i4"), np.dtype("|u1")
_EXPERTS = np.dtype("|u1"), np.dtype("<u2")

T = TypeVar("T")


class CodecError(ValueError):
    """A group cannot be written, or bytes are no group of this format."""


class _Record(NamedTuple):
    format: int
    key: list[int]
    prompt_id: str
    start_version: int
    deadline: int
    samples: list[Any]


class _Row(NamedTuple):
    episode: int
    sample_index: int
    arrays: list[list[Any]]
    status: str
    reward: float | None
    failure: str | None
    metadata: dict[str, Any]
    kept: list[Any] | None
    """[vocabulary, sizes of the sets, the sets], as `KeptSets` has them."""
    terms: dict[str, float]
    experts: list[Any] | None = None
    """[layers, experts of a token, the experts, one token after another]; written where there are any."""


def encode_group(group: Group) -> bytes:
    """Raises CodecError if a sample's metadata is not JSON-like."""
    record = _Record(
        FORMAT,
        list(group.key),
        group.prompt_id,
        group.start_version,
        group.deadline,
        [_row(sample, group.key) for sample in group.samples],
    )
    return cast(bytes, msgpack.packb(record, unicode_errors="surrogatepass"))


def decode_group(data: bytes) -> Group:
    """Inverse of `encode_group`; arrays are fresh and writable. Raises CodecError."""
    try:
        unpacked = msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=True)
    except (ValueError, RecursionError) as error:  # msgpack's own errors are ValueErrors
        raise CodecError(f"a journal record of {len(data)} bytes is not msgpack: {error}") from error
    if not isinstance(unpacked, list) or not unpacked or unpacked[0] != FORMAT:
        found = unpacked[0] if isinstance(unpacked, list) and unpacked else unpacked
        raise CodecError(f"a journal record has format {str(found)[:40]}; this version of headrace reads {FORMAT}")
    record = _Record(*_fields(unpacked, len(_Record._fields), "a journal record"))
    key = GroupKey(*(typed(part, int, "the key") for part in _fields(record.key, 3, "the group's key")))
    return Group(
        key=key,
        prompt_id=typed(record.prompt_id, str, "prompt_id"),
        start_version=typed(record.start_version, int, "start_version"),
        deadline=typed(record.deadline, int, "deadline"),
        samples=tuple(_sample(row, key) for row in typed(record.samples, list, "samples")),
    )


def check_metadata(metadata: object) -> None:
    """Raises CodecError unless this is a mapping of text to JSON-like values with whole numbers of 64 bits."""
    if not isinstance(metadata, dict):
        raise CodecError(f"metadata is a {type(metadata).__name__}; it must be a dict with text keys")
    _check_json_like(metadata, "metadata", 0)


def _row(sample: Sample, key: GroupKey) -> tuple[Any, ...]:
    if sample.group != key:
        raise CodecError(f"a sample of group {sample.group} is in group {key}")
    check_metadata(sample.metadata)
    columns = _COLUMNS if sample.temperatures is None else _WITH_TEMPERATURES
    arrays = [pack_array(getattr(sample, name), dtype) for name, dtype in columns.items()]
    reward = None if sample.reward is None else float(sample.reward)
    terms = {name: float(value) for name, value in sample.terms.items()}
    row = _Row(
        sample.episode,
        sample.index,
        arrays,
        str(sample.status),
        reward,
        sample.failure,
        sample.metadata,
        None if sample.kept is None else _pack_kept(sample.kept),
        terms,
    )
    return row[:-1] if sample.experts is None else (*row[:-1], _pack_experts(sample.experts))


def _sample(packed: Any, key: GroupKey) -> Sample:
    has_experts = isinstance(packed, list) and len(packed) == len(_Row._fields)
    row = _Row(*_fields(packed, len(_Row._fields) - (not has_experts), "a sample"))
    given = typed(row.arrays, list, "a sample's arrays")
    columns = _WITH_TEMPERATURES if len(given) == len(_WITH_TEMPERATURES) else _COLUMNS
    packed_arrays = _fields(given, len(columns), "a sample's arrays")
    arrays = {
        name: unpack_array(packed_array, dtype, name)
        for (name, dtype), packed_array in zip(columns.items(), packed_arrays, strict=True)
    }
    status = typed(row.status, str, "status")
    if status not in set(SampleStatus):
        raise CodecError(f"a sample has the status {status[:40]!r}; there are {', '.join(SampleStatus)}")
    check_metadata(row.metadata)
    try:
        return Sample(
            group=key,
            episode=typed(row.episode, int, "episode"),
            index=typed(row.sample_index, int, "index"),
            status=SampleStatus(status),
            reward=None if row.reward is None else typed(row.reward, float, "reward"),
            failure=None if row.failure is None else typed(row.failure, str, "failure"),
            metadata=row.metadata,
            kept=None if row.kept is None else _unpack_kept(row.kept),
            terms={
                typed(name, str, "a term's name"): typed(value, float, f"the term {name}")
                for name, value in typed(row.terms, dict, "terms").items()
            },
            experts=None if row.experts is None else _unpack_experts(row.experts),
            **arrays,
        )
    except ValueError as error:
        raise CodecError(str(error)) from error


def _pack_kept(kept: KeptSets) -> list[Any]:
    return [kept.vocab_size, pack_array(kept.counts, _COUNTS), pack_array(kept.data, _DATA)]


def _unpack_kept(packed: Any) -> KeptSets:
    """Raises KeptSetError, a ValueError, or CodecError."""
    vocab_size, counts, data = _fields(packed, 3, "kept sets")
    return KeptSets.checked(
        typed(vocab_size, int, "the vocabulary of kept sets"),
        unpack_array(counts, _COUNTS, "the sizes of kept sets"),
        unpack_array(data, _DATA, "kept sets"),
    )


def _pack_experts(experts: NDArray[np.unsignedinteger]) -> list[Any]:
    dtype = experts.dtype.newbyteorder("<")
    return [*experts.shape[1:], pack_array(np.ascontiguousarray(experts).reshape(-1), dtype)]


def _unpack_experts(packed: Any) -> NDArray[np.unsignedinteger]:
    """Raises CodecError."""
    layers, chosen, array = _fields(packed, 3, "experts")
    shape = [typed(size, int, "experts") for size in (layers, chosen)]
    found = array[0] if isinstance(array, list) and array else None
    flat = unpack_array(array, next((each for each in _EXPERTS if each.str == found), _EXPERTS[0]), "experts")
    if min(shape) < 1 or len(flat) % (shape[0] * shape[1]):
        raise CodecError(f"experts are {len(flat)} numbers, of {shape[1]} in {shape[0]} layers for each token")
    return flat.reshape(-1, *shape)


def pack_array(array: NDArray[Any], dtype: np.dtype[Any]) -> list[Any]:
    if array.ndim != 1 or array.dtype.newbyteorder("<") != dtype:
        raise CodecError(f"an array of dtype {array.dtype} and shape {array.shape}, where a row of {dtype} belongs")
    return [dtype.str, len(array), array.astype(dtype, copy=False).tobytes()]


def unpack_array(packed: Any, dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    found, length, data = _fields(packed, 3, name)
    if found != dtype.str:
        raise CodecError(f"{name} has dtype {str(found)[:40]!r}, not {dtype.str!r}")
    data = typed(data, bytes, name)
    if typed(length, int, name) * dtype.itemsize != len(data):
        raise CodecError(f"{name} says {length} items of {dtype.itemsize} bytes, but has {len(data)} bytes")
    if dtype.kind == "b" and data.strip(b"\x00\x01"):
        raise CodecError(f"{name} has a byte that is neither 0 nor 1")
    return np.frombuffer(data, dtype).astype(dtype.newbyteorder("="))


def _fields(value: Any, count: int, what: str) -> list[Any]:
    if not isinstance(value, list) or len(value) != count:
        raise CodecError(f"{what} has {len(value) if isinstance(value, list) else 'no'} fields, not {count}")
    return value


def typed(value: Any, kind: type[T], what: str) -> T:
    if type(value) is not kind:  # exactly: a bool is no number here
        raise CodecError(f"{what} is a {type(value).__name__}, not a {kind.__name__}")
    return value


def _check_json_like(value: object, where: str, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise CodecError(f"{where[:80]} is nested deeper than {_MAX_DEPTH}")
    match value:
        case None | bool() | str():
            return
        case int():
            if not -(2**63) <= value < 2**64:
                raise CodecError(f"{where} is {value}, beyond 64 bits; store it as text")
        case float():
            if not math.isfinite(value):
                raise CodecError(f"{where} is {value}, which is no JSON value")
        case list():
            for place, item in enumerate(value):
                _check_json_like(item, f"{where}[{place}]", depth + 1)
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise CodecError(f"{where} has the key {key!r}; keys are text")
                _check_json_like(item, f"{where}.{key}", depth + 1)
        case _:
            raise CodecError(
                f"{where} is a {type(value).__name__}; give JSON-like values: text, numbers, bools, None, lists, dicts"
            )
