"""What msgpack gave to plain data, of which nothing is trusted: see `wire_format.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from headrace.runtime.wire.wire_marks import (
    DTYPES,
    MOST_DEPTH,
    MOST_INT_BYTES,
    MOST_MANY,
    READ,
    SCALARS,
    Where,
    is_words,
    said,
)
from headrace.runtime.wire.wire_types import WireError, WireTypes

_MOST_DIMENSIONS = 32


class Map(list[Any]):
    """The pairs of a map, as they stood."""


class Reader:
    def __init__(self, types: WireTypes, buffers: Sequence[memoryview]) -> None:
        self.taken = 0
        self._types = types
        self._buffers = buffers

    def read(self, value: Any, where: Where, depth: int) -> Any:
        if depth > MOST_DEPTH:
            raise WireError(f"{said(where)} is nested deeper than {MOST_DEPTH}")
        if type(value) is list:
            return self._items(value, where, depth)
        if type(value) is Map:
            return self._map(value, where, depth)
        if type(value) in READ:
            return value
        raise WireError(f"{said(where)} is a {type(value).__qualname__} of msgpack, which this codec has no use for")

    def _items(self, items: list[Any], where: Where, depth: int) -> list[Any]:
        return [
            item if type(item) in READ else self.read(item, (where, "[%d]", place), depth + 1)
            for place, item in enumerate(items)
        ]

    def _map(self, pairs: Map, where: Where, depth: int) -> Any:
        if len(pairs) == 1 and pairs[0][0] is None:
            return self._tagged(pairs[0][1], where, depth)
        read: dict[Any, Any] = {}
        for key, item in pairs:
            if type(key) is not str and type(key) is not int:
                raise WireError(f"{said(where)} has the key {str(key)[:60]!r}; keys are text or ints")
            if key in read:
                raise WireError(f"{said(where)} has the key {str(key)[:60]!r} twice")
            read[key] = item if type(item) in READ else self.read(item, (where, "[%r]", key), depth + 1)
        return read

    def _tagged(self, tagged: Any, where: Where, depth: int) -> Any:
        if type(tagged) is not list or not tagged:
            raise WireError(f"{said(where)} has a mark without anything marked")
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
                raise WireError(f"{said(where)} has the mark {str(tag)[:60]!r}, which this codec does not have")

    def _int(self, parts: list[Any], where: Where) -> int:
        (data,) = _parts(parts, 1, where)
        if type(data) is not bytes or len(data) > MOST_INT_BYTES:
            raise WireError(f"{said(where)} is an int of other than at most {MOST_INT_BYTES} bytes")
        return int.from_bytes(data, "little", signed=True)

    def _beside(self, place: Any, where: Where) -> memoryview:
        if type(place) is not int or place != self.taken or place >= len(self._buffers):
            raise WireError(
                f"{said(where)} lies in buffer {str(place)[:20]}, where {self.taken} of {len(self._buffers)} is next"
            )
        self.taken += 1
        return self._buffers[place]

    def _array(self, parts: list[Any], where: Where) -> NDArray[Any]:
        name, shape, data = _parts(parts, 3, where)
        dtype = DTYPES.get(name) if type(name) is str else None
        if dtype is None:
            raise WireError(f"{said(where)} is an array of dtype {str(name)[:40]!r}; there are {', '.join(DTYPES)}")
        if type(shape) is not list or len(shape) > _MOST_DIMENSIONS or any(type(n) is not int or n < 0 for n in shape):
            raise WireError(f"{said(where)} is an array of the shape {str(shape)[:60]}")
        buffer = bytearray(data) if type(data) is bytes else self._beside(data, where)
        items = 1
        for size in shape:
            items *= size
        if items * dtype.itemsize != len(buffer):
            raise WireError(f"{said(where)} is an array of {items} × {dtype}, but has {len(buffer)} bytes")
        if dtype.kind == "b" and len(buffer) and np.frombuffer(buffer, np.uint8).max() > 1:
            raise WireError(f"{said(where)} is an array of bools with a byte that is neither 0 nor 1")
        return cast(NDArray[Any], np.frombuffer(buffer, dtype).reshape(shape))

    def _registered(self, parts: list[Any], where: Where, depth: int) -> Any:
        if not parts:
            raise WireError(f"{said(where)} is of a type without a name")
        name, *packed = parts
        form = self._types.named(name, lambda: said(where))
        if len(packed) != len(form.fields):
            raise WireError(f"{said(where)} is a {form.name!r} with {len(packed)} fields, not {len(form.fields)}")
        read = [
            part if type(part) in READ else self.read(part, (where, ".%s", field), depth + 1)
            for field, part in zip(form.fields, packed, strict=True)
        ]
        try:
            return form.make(read)
        except Exception as error:  # whatever the type's own checks raise of parts that they did not expect
            raise WireError(f"{said(where)} is no {form.name!r}: {error}") from error

    def _many(self, parts: list[Any], where: Where, depth: int) -> list[Any]:
        if len(parts) < 2:
            raise WireError(f"{said(where)} are of a type without a name, or without a number")
        name, count, *packed = parts
        form = self._types.named(name, lambda: said(where))
        if type(count) is not int or not 0 <= count <= MOST_MANY:
            raise WireError(f"{said(where)} are {str(count)[:20]} values; {MOST_MANY} at most may go together")
        if len(packed) != len(form.fields):
            raise WireError(f"{said(where)} are {form.name!r} with {len(packed)} fields, not {len(form.fields)}")
        columns = [
            self._column(column, count, where, field, depth + 2)
            for field, column in zip(form.fields, packed, strict=True)
        ]
        if all(column[0] for column in packed):
            raise WireError(f"{said(where)} are {count} times one {form.name!r}, which goes {count} times")
        try:
            return [form.make([column[place] for column in columns]) for place in range(count)]
        except Exception as error:  # as in `_registered`
            raise WireError(f"{said(where)} has what is no {form.name!r}: {error}") from error

    def _column(self, packed: Any, count: int, where: Where, field: str, depth: int) -> list[Any]:
        """The field of all of them."""
        if type(packed) is not list or len(packed) != 2 or type(packed[0]) is not bool:
            raise WireError(f"{said((where, '[].%s', field))} is not said to be the same in all, or not")
        is_same, parts = packed
        if is_same:
            value = self.read(parts, (where, "[].%s", field), depth)
            if type(value) not in SCALARS and type(value) is not int and not is_words(value):
                raise WireError(f"{said((where, '[].%s', field))} is no number or text, which all could have")
            return [value] * count
        if type(parts) is not list or len(parts) != count:
            raise WireError(f"{said((where, '[].%s', field))} has other than {count} values")
        return [
            part if type(part) in READ else self.read(part, ((where, "[%d]", place), ".%s", field), depth)
            for place, part in enumerate(parts)
        ]


def _parts(parts: list[Any], count: int, where: Where) -> list[Any]:
    if len(parts) != count:
        raise WireError(f"{said(where)} has {len(parts)} parts, not {count}")
    return parts
