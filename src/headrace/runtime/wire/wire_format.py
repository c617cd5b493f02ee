"""The wire codec: plain data to bytes and back, for what crosses between processes.

None, bools, ints, floats, text, bytes, lists, tuples, dicts with text or int keys, numpy arrays of plain dtypes, and
the types of a registry (`WireTypes`). The envelope is msgpack; arrays and bytes of `LARGE` bytes and more lie beside
it, so that they can be handed over without a copy. What is no type of msgpack is a map whose only key is nil, which is
no dict of this codec. A list of values of one type of ours goes field by field, and a field in which all have the same
once: messages are full of refs and headers. Decoding trusts nothing: it looks up names and dtypes, and imports and runs
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgpack
import numpy as np
from numpy.typing import NDArray

from headrace.runtime.wire.wire_types import WireError, WireTypes

LARGE = 1 << 10
"""Bytes from which on a buffer lies beside the envelope."""
MOST_DEPTH = 64
MOST_ENVELOPE = 1 << 28
"""Bytes."""
MANY, MOST_MANY = 8, 1 << 16
"""Values in a list, from which on and up to which they go field by field. They differ in one at least: so each takes
bytes, and no message becomes more than it has."""
_MOST_INT_BYTES = 1 << 10
_MOST_DIMENSIONS = 32

_INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")
_DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ("bool", *_INTS, *_FLOATS)}
_SCALARS = frozenset({type(None), bool, float, str})
_READ = _SCALARS | {int, bytes}
"""What msgpack gives as it was."""

Where = str | tuple[Any, str, Any]
"""A place in a value: that of what it is in, and how to say which place there. Put into words for messages alone."""

_TUPLE, _INT, _BYTES, _ARRAY, _TYPE, _MANY = "tuple", "int", "bytes", "array", "type", "many"


@dataclass(frozen=True, slots=True)
class Parcel:
    """A value on its way."""

    envelope: bytes
    buffers: Sequence[memoryview] = ()
    """Of bytes. Of what was packed: its memory, not copies of it."""


def pack(value: Any, types: WireTypes, what: str = "the value") -> Parcel:
    """Raises WireError for what is no plain data; places in messages begin with `what`."""
    writer = _Writer(types)
    try:
        writer.write(value, what, 0)
    except UnicodeEncodeError as error:
        raise WireError(f"{what} has text that is none: {error}") from error
    envelope = writer.packer.bytes()
    if len(envelope) > MOST_ENVELOPE:
        raise WireError(
            f"{what} takes {len(envelope)} bytes beside its arrays; {MOST_ENVELOPE} may be sent at once: give it in "
            "pieces, or as arrays"
        )
    return Parcel(envelope, writer.buffers)


def unpack(parcel: Parcel, types: WireTypes, what: str = "a message") -> Any:
    """Inverse of `pack`. Small arrays are fresh and writable; those that lay beside the envelope are views of their
    buffers, and writable where these are. Raises WireError."""
    if len(parcel.envelope) > MOST_ENVELOPE:
        raise WireError(f"{what} has {len(parcel.envelope)} bytes; {MOST_ENVELOPE} may be sent at once")
    try:
        unpacked = msgpack.unpackb(
            parcel.envelope, unicode_errors="surrogatepass", strict_map_key=False, object_pairs_hook=_Map, use_list=True
        )
    except (ValueError, TypeError, RecursionError, OverflowError) as error:  # msgpack's own errors are ValueErrors
        raise WireError(f"{what} of {len(parcel.envelope)} bytes is not msgpack: {error}") from error
    reader = _Reader(types, parcel.buffers)
    value = reader.read(unpacked, what, 0)
    if reader.taken != len(parcel.buffers):
        raise WireError(f"{what} has {len(parcel.buffers)} buffers and names {reader.taken}")
    return value


def copied(value: Any, types: WireTypes, what: str) -> Any:
    """`value` after a journey: no part of it is shared. Raises WireError for what is no plain data."""
    parcel = pack(value, types, what)
    buffers = [memoryview(bytearray(buffer)) for buffer in parcel.buffers]
    return unpack(Parcel(parcel.envelope, buffers), types, what)


class _Map(list[Any]):
    """The pairs of a map, as they stood."""


class _Writer:
    def __init__(self, types: WireTypes) -> None:
        self.packer = msgpack.Packer(autoreset=False, unicode_errors="surrogatepass")
        self.buffers: list[memoryview] = []
        self._types = types

    def write(self, value: Any, where: Where, depth: int) -> None:
        if depth > MOST_DEPTH:
            raise WireError(f"{_short(where)} is nested deeper than {MOST_DEPTH}, or holds itself")
        kind = type(value)
        if kind in _SCALARS:
            self.packer.pack(value)
        elif kind is int:
            self._int(value, where)
        elif kind is bytes:
            self._bytes(value)
        elif kind is list:
            if not self._many(value, where, depth):
                self.packer.pack_array_header(len(value))
                self._items(value, where, depth)
        elif kind is tuple:
            self._tagged(_TUPLE, len(value))
            self._items(value, where, depth)
        elif kind is dict:
            self._dict(value, where, depth)
        elif kind is np.ndarray:
            self._array(value, where)
        else:
            self._registered(value, where, depth)

    def _many(self, values: list[Any], where: Where, depth: int) -> bool:
        """Whether they are of one type of ours, and so many that they went field by field."""
        if not MANY <= len(values) <= MOST_MANY or (form := self._types.of(type(values[0]))) is None:
            return False
        if len(set(map(type, values))) > 1:
            return False
        columns = list(zip(*map(form.parts, values), strict=True))
        common = [_all_same(column) for column in columns]
        if all(common):
            return False
        self._tagged(_MANY, 2 + len(columns))
        self.packer.pack(form.name)
        self.packer.pack(len(values))
        for field, column, is_same in zip(form.fields, columns, common, strict=True):
            self.packer.pack_array_header(2)
            self.packer.pack(is_same)
            if is_same:
                self.write(column[0], ((where, "[%d]", 0), ".%s", field), depth + 2)
                continue
            self.packer.pack_array_header(len(column))
            for place, part in enumerate(column):
                if type(part) in _SCALARS:
                    self.packer.pack(part)
                else:
                    self.write(part, ((where, "[%d]", place), ".%s", field), depth + 2)
        return True

    def _tagged(self, tag: str, parts: int) -> None:
        self.packer.pack_map_header(1)
        self.packer.pack(None)
        self.packer.pack_array_header(1 + parts)
        self.packer.pack(tag)

    def _items(self, items: Sequence[Any], where: Where, depth: int) -> None:
        for place, item in enumerate(items):
            if type(item) in _SCALARS or (type(item) is int and -(2**63) <= item < 2**64):
                self.packer.pack(item)
            else:
                self.write(item, (where, "[%d]", place), depth + 1)

    def _int(self, value: int, where: Where) -> None:
        if -(2**63) <= value < 2**64:
            self.packer.pack(value)
            return
        size = value.bit_length() // 8 + 1
        if size > _MOST_INT_BYTES:
            raise WireError(f"{_short(where)} is an int of {size} bytes; {_MOST_INT_BYTES} at most may travel")
        self._tagged(_INT, 1)
        self.packer.pack(value.to_bytes(size, "little", signed=True))

    def _bytes(self, value: bytes) -> None:
        if len(value) < LARGE:
            self.packer.pack(value)
            return
        self._tagged(_BYTES, 1)
        self._beside(memoryview(value))

    def _beside(self, buffer: memoryview) -> None:
        self.packer.pack(len(self.buffers))
        self.buffers.append(buffer)

    def _dict(self, value: dict[Any, Any], where: Where, depth: int) -> None:
        self.packer.pack_map_header(len(value))
        for key, item in value.items():
            if type(key) is not str and not (type(key) is int and -(2**63) <= key < 2**64):
                raise WireError(
                    f"{_short(where)} has the key {key!r}, a {type(key).__qualname__}; keys are text or ints of 64 bits"
                )
            self.packer.pack(key)
            if type(item) in _SCALARS:
                self.packer.pack(item)
            else:
                self.write(item, (where, "[%r]", key), depth + 1)

    def _array(self, array: NDArray[Any], where: Where) -> None:
        little = array.dtype.newbyteorder("<") if array.dtype.kind in "biuf" else array.dtype
        if str(little) not in _DTYPES:
            raise WireError(
                f"{_short(where)} is an array of dtype {array.dtype}; those that may travel: {', '.join(_DTYPES)}"
            )
        straight = np.asarray(array, dtype=little, order="C")  # a copy only where it has to be one
        data = straight.reshape(-1).view(np.uint8).data
        self._tagged(_ARRAY, 3)
        self.packer.pack(str(little))
        self.packer.pack(list(array.shape))
        if len(data) < LARGE:
            self.packer.pack(bytes(data))
        else:
            self._beside(data)

    def _registered(self, value: Any, where: Where, depth: int) -> None:
        form = self._types.of(type(value))
        if form is None:
            raise WireError(f"{_short(where)} is {_described(value)}, which is no plain data{_mend(value)}")
        parts = form.parts(value)
        self._tagged(_TYPE, 1 + len(parts))
        self.packer.pack(form.name)
        for field, part in zip(form.fields, parts, strict=True):
            if type(part) in _SCALARS:
                self.packer.pack(part)
            else:
                self.write(part, (where, ".%s", field), depth + 1)


class _Reader:
    def __init__(self, types: WireTypes, buffers: Sequence[memoryview]) -> None:
        self.taken = 0
        self._types = types
        self._buffers = buffers

    def read(self, value: Any, where: Where, depth: int) -> Any:
        if depth > MOST_DEPTH:
            raise WireError(f"{_short(where)} is nested deeper than {MOST_DEPTH}")
        if type(value) is list:
            return self._items(value, where, depth)
        if type(value) is _Map:
            return self._map(value, where, depth)
        if type(value) in _READ:
            return value
        raise WireError(f"{_short(where)} is a {type(value).__qualname__} of msgpack, which this codec has no use for")

    def _items(self, items: list[Any], where: Where, depth: int) -> list[Any]:
        return [
            item if type(item) in _READ else self.read(item, (where, "[%d]", place), depth + 1)
            for place, item in enumerate(items)
        ]

    def _map(self, pairs: _Map, where: Where, depth: int) -> Any:
        if len(pairs) == 1 and pairs[0][0] is None:
            return self._tagged(pairs[0][1], where, depth)
        read: dict[Any, Any] = {}
        for key, item in pairs:
            if type(key) is not str and type(key) is not int:
                raise WireError(f"{_short(where)} has the key {str(key)[:60]!r}; keys are text or ints")
            if key in read:
                raise WireError(f"{_short(where)} has the key {str(key)[:60]!r} twice")
            read[key] = item if type(item) in _READ else self.read(item, (where, "[%r]", key), depth + 1)
        return read

    def _tagged(self, tagged: Any, where: Where, depth: int) -> Any:
        if type(tagged) is not list or not tagged:
            raise WireError(f"{_short(where)} has a mark without anything marked")
        tag, *parts = tagged
        match tag:
            case "tuple":
                return tuple(self._items(parts, where, depth))
            case "int":
                return self._int(parts, where)
            case "bytes":
                (place,) = _parts(parts, 1, where)
                return bytes(self._beside(place, where))
            case "array":
                return self._array(parts, where)
            case "type":
                return self._registered(parts, where, depth)
            case "many":
                return self._many(parts, where, depth)
            case _:
                raise WireError(f"{_short(where)} has the mark {str(tag)[:60]!r}, which this codec does not have")

    def _int(self, parts: list[Any], where: Where) -> int:
        (data,) = _parts(parts, 1, where)
        if type(data) is not bytes or len(data) > _MOST_INT_BYTES:
            raise WireError(f"{_short(where)} is an int of other than at most {_MOST_INT_BYTES} bytes")
        return int.from_bytes(data, "little", signed=True)

    def _beside(self, place: Any, where: Where) -> memoryview:
        if type(place) is not int or place != self.taken or place >= len(self._buffers):
            raise WireError(
                f"{_short(where)} lies in buffer {str(place)[:20]}, where {self.taken} of {len(self._buffers)} is next"
            )
        self.taken += 1
        return self._buffers[place]

    def _array(self, parts: list[Any], where: Where) -> NDArray[Any]:
        name, shape, data = _parts(parts, 3, where)
        dtype = _DTYPES.get(name) if type(name) is str else None
        if dtype is None:
            raise WireError(f"{_short(where)} is an array of dtype {str(name)[:40]!r}; there are {', '.join(_DTYPES)}")
        if type(shape) is not list or len(shape) > _MOST_DIMENSIONS or any(type(n) is not int or n < 0 for n in shape):
            raise WireError(f"{_short(where)} is an array of the shape {str(shape)[:60]}")
        buffer = bytearray(data) if type(data) is bytes else self._beside(data, where)
        items = 1
        for size in shape:
            items *= size
        if items * dtype.itemsize != len(buffer):
            raise WireError(f"{_short(where)} is an array of {items} × {dtype}, but has {len(buffer)} bytes")
        if dtype.kind == "b" and len(buffer) and np.frombuffer(buffer, np.uint8).max() > 1:
            raise WireError(f"{_short(where)} is an array of bools with a byte that is neither 0 nor 1")
        return cast(NDArray[Any], np.frombuffer(buffer, dtype).reshape(shape))

    def _registered(self, parts: list[Any], where: Where, depth: int) -> Any:
        if not parts:
            raise WireError(f"{_short(where)} is of a type without a name")
        name, *packed = parts
        form = self._types.named(name, lambda: _short(where))
        if len(packed) != len(form.fields):
            raise WireError(f"{_short(where)} is a {form.name!r} with {len(packed)} fields, not {len(form.fields)}")
        read = [
            part if type(part) in _READ else self.read(part, (where, ".%s", field), depth + 1)
            for field, part in zip(form.fields, packed, strict=True)
        ]
        try:
            return form.make(read)
        except Exception as error:  # whatever the type's own checks raise of parts that they did not expect
            raise WireError(f"{_short(where)} is no {form.name!r}: {error}") from error

    def _many(self, parts: list[Any], where: Where, depth: int) -> list[Any]:
        if len(parts) < 2:
            raise WireError(f"{_short(where)} are of a type without a name, or without a number")
        name, count, *packed = parts
        form = self._types.named(name, lambda: _short(where))
        if type(count) is not int or not 0 <= count <= MOST_MANY:
            raise WireError(f"{_short(where)} are {str(count)[:20]} values; {MOST_MANY} at most may go together")
        if len(packed) != len(form.fields):
            raise WireError(f"{_short(where)} are {form.name!r} with {len(packed)} fields, not {len(form.fields)}")
        columns = [
            self._column(column, count, where, field, depth + 2)
            for field, column in zip(form.fields, packed, strict=True)
        ]
        if all(column[0] for column in packed):
            raise WireError(f"{_short(where)} are {count} times one {form.name!r}, which goes {count} times")
        try:
            return [form.make([column[place] for column in columns]) for place in range(count)]
        except Exception as error:  # as in `_registered`
            raise WireError(f"{_short(where)} has what is no {form.name!r}: {error}") from error

    def _column(self, packed: Any, count: int, where: Where, field: str, depth: int) -> list[Any]:
        """The field of all of them."""
        if type(packed) is not list or len(packed) != 2 or type(packed[0]) is not bool:
            raise WireError(f"{_short((where, '[].%s', field))} is not said to be the same in all, or not")
        is_same, parts = packed
        if is_same:
            value = self.read(parts, (where, "[].%s", field), depth)
            if type(value) not in _SCALARS and type(value) is not int and not _is_words(value):
                raise WireError(f"{_short((where, '[].%s', field))} is no number or text, which all could have")
            return [value] * count
        if type(parts) is not list or len(parts) != count:
            raise WireError(f"{_short((where, '[].%s', field))} has other than {count} values")
        return [
            part if type(part) in _READ else self.read(part, ((where, "[%d]", place), ".%s", field), depth)
            for place, part in enumerate(parts)
        ]


def _all_same(column: Sequence[Any]) -> bool:
    """Whether all are one value that cannot be changed, so that they may be one object where they arrive."""
    first = column[0]
    if all(each is first for each in column):  # also of floats, of which two that are equal may differ in sign
        return type(first) in _SCALARS or type(first) is int or _is_words(first)
    if type(first) in (str, int):
        return column.count(first) == len(column) and len(set(map(type, column))) == 1
    return _is_words(first) and all(each == first and _is_words(each) for each in column)


def _is_words(value: Any) -> bool:
    """Names of columns, as a rule."""
    return type(value) is tuple and all(type(each) is str for each in value)


def _parts(parts: list[Any], count: int, where: Where) -> list[Any]:
    if len(parts) != count:
        raise WireError(f"{_short(where)} has {len(parts)} parts, not {count}")
    return parts


def _described(value: Any) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}".replace("a builtins.", "a ")


def _mend(value: Any) -> str:
    if isinstance(value, np.generic):
        return "; give a number of Python's, as value.item()"
    if isinstance(value, set | frozenset):
        return "; give a list"
    if callable(value):
        return "; a callable travels by name"
    return "; give numbers, text, lists, dicts or arrays, or register the type"


def _short(where: Where) -> str:
    parts: list[str] = []
    while not isinstance(where, str):
        where, words, which = where
        parts.append(words % (which,))
    said = "".join([where, *reversed(parts)])
    return said if len(said) <= 160 else f"{said[:60]} … {said[-90:]}"
