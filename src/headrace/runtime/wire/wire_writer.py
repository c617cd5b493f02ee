"""Plain data to msgpack, and the memory of large arrays beside it: see `wire_format.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from headrace.runtime.wire.wire_marks import (
    DTYPES,
    LARGE,
    MANY,
    MOST_DEPTH,
    MOST_INT_BYTES,
    MOST_MANY,
    SCALARS,
    Where,
    is_words,
    said,
)
from headrace.runtime.wire.wire_types import WireError, WireTypes

_TUPLE, _INT, _BYTES, _ARRAY, _TYPE, _MANY = "tuple", "int", "bytes", "array", "type", "many"


class Writer:
    def __init__(self, types: WireTypes) -> None:
        self.packer = msgpack.Packer(autoreset=False, unicode_errors="surrogatepass")
        self.buffers: list[memoryview] = []
        self._types = types

    def write(self, value: Any, where: Where, depth: int) -> None:
        if depth > MOST_DEPTH:
            raise WireError(f"{said(where)} is nested deeper than {MOST_DEPTH}, or holds itself")
        kind = type(value)
        if kind in SCALARS:
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
                if type(part) in SCALARS:
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
            if type(item) in SCALARS or (type(item) is int and -(2**63) <= item < 2**64):
                self.packer.pack(item)
            else:
                self.write(item, (where, "[%d]", place), depth + 1)

    def _int(self, value: int, where: Where) -> None:
        if -(2**63) <= value < 2**64:
            self.packer.pack(value)
            return
        size = value.bit_length() // 8 + 1
        if size > MOST_INT_BYTES:
            raise WireError(f"{said(where)} is an int of {size} bytes; {MOST_INT_BYTES} at most may travel")
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
                    f"{said(where)} has the key {key!r}, a {type(key).__qualname__}; keys are text or ints of 64 bits"
                )
            self.packer.pack(key)
            if type(item) in SCALARS:
                self.packer.pack(item)
            else:
                self.write(item, (where, "[%r]", key), depth + 1)

    def _array(self, array: NDArray[Any], where: Where) -> None:
        little = array.dtype.newbyteorder("<") if array.dtype.kind in "biuf" else array.dtype
        if str(little) not in DTYPES:
            raise WireError(
                f"{said(where)} is an array of dtype {array.dtype}; those that may travel: {', '.join(DTYPES)}"
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
            raise WireError(f"{said(where)} is {_described(value)}, which is no plain data{_mend(value)}")
        parts = form.parts(value)
        self._tagged(_TYPE, 1 + len(parts))
        self.packer.pack(form.name)
        for field, part in zip(form.fields, parts, strict=True):
            if type(part) in SCALARS:
                self.packer.pack(part)
            else:
                self.write(part, (where, ".%s", field), depth + 1)


def _all_same(column: Sequence[Any]) -> bool:
    """Whether all are one value that cannot be changed, so that they may be one object where they arrive."""
    first = column[0]
    if all(each is first for each in column):  # also of floats, of which two that are equal may differ in sign
        return type(first) in SCALARS or type(first) is int or is_words(first)
    if type(first) in (str, int):
        return column.count(first) == len(column) and len(set(map(type, column))) == 1
    return is_words(first) and all(each == first and is_words(each) for each in column)


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
