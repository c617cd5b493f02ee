"""The wire codec: plain data comes back equal, and what is none is refused with its type and place."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace.config.algorithm import KLConfig
from headrace.runtime.refs import Ref
from headrace.runtime.wire import wire_format
from headrace.runtime.wire.wire_format import Parcel, copied, pack, unpack
from headrace.runtime.wire.wire_marks import LARGE, MOST_DEPTH
from headrace.runtime.wire.wire_types import WireError, WireTypes


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Key(NamedTuple):
    epoch: int
    position: int


@dataclass(frozen=True, slots=True)
class Header:
    key: Key
    colour: Colour
    terms: dict[str, float]
    ref: Ref | None = None

    def __post_init__(self) -> None:
        if self.key.epoch < 0:
            raise ValueError(f"epoch {self.key.epoch} is below 0")


@dataclass(frozen=True, slots=True)
class Cell:
    one: Any
    other: Any


TYPES = WireTypes({"cell": Cell, "colour": Colour, "key": Key, "header": Header, "ref": Ref, "kl": KLConfig})
NONE = WireTypes()
DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", ">i4", ">f8"]

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())  # surrogates too
    | st.binary(max_size=3 * LARGE)
    | st.sampled_from(Colour)
    | st.builds(Key, st.integers(), st.integers())
)
arrays = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(np.dtype(dtype), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=20))
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars | arrays,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.text() | st.integers(-(2**63), 2**64 - 1), inner, max_size=5)
        | st.builds(
            Header,
            st.builds(Key, st.integers(0), st.integers()),
            st.sampled_from(Colour),
            st.dictionaries(st.text(), st.floats(), max_size=3),
        )
    ),
    max_leaves=20,
)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        little = one.dtype.newbyteorder("<").newbyteorder("=")
        return other.dtype == little and one.shape == other.shape and one.astype(little).tobytes() == other.tobytes()
    if isinstance(one, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, Header):
        return all(same(getattr(one, name), getattr(other, name)) for name in ("key", "colour", "terms", "ref"))
    return bool(one == other)


@given(values)
def test_plain_data_comes_back_equal_type_for_type(value: Any) -> None:
    assert same(value, unpack(pack(value, TYPES), TYPES))
    assert same(value, copied(value, TYPES, "it"))


@given(st.binary(max_size=200), st.lists(st.binary(max_size=20), max_size=2))
def test_whatever_bytes_arrive_only_a_wire_error_comes_of_them(data: bytes, buffers: list[bytes]) -> None:
    with suppress(WireError):
        unpack(Parcel(data, [memoryview(buffer) for buffer in buffers]), TYPES)


@given(values, st.data())
def test_a_damaged_message_gives_a_wire_error_or_plain_data(value: Any, data: st.DataObject) -> None:
    parcel = pack(value, TYPES)
    place = data.draw(st.integers(0, len(parcel.envelope) - 1))
    damaged = bytearray(parcel.envelope)
    damaged[place] ^= data.draw(st.integers(1, 255))
    with suppress(WireError):
        pack(unpack(Parcel(bytes(damaged), parcel.buffers), TYPES), TYPES)


KEYS = st.builds(Key, st.integers(), st.integers())


@given(
    st.lists(KEYS, min_size=1, max_size=3).flatmap(lambda few: st.lists(st.sampled_from(few), min_size=8, max_size=12))
)
def test_many_of_one_type_come_back_as_each_alone_would(keys: list[Key]) -> None:
    headers = [Header(Key(abs(key.epoch), 0), Colour.RED, {"x": 1.0}) for key in keys]
    for many in (keys, headers, [(key, np.arange(3.0)) for key in keys]):
        assert same(many, unpack(pack(many, TYPES), TYPES))
        assert same(many, [unpack(pack(each, TYPES), TYPES) for each in many])


def test_of_many_each_field_comes_back_bit_for_bit() -> None:
    floats = [Cell(-0.0 if place % 2 else 0.0, True) for place in range(8)]
    mixed = [Cell(True if place % 2 else 1, place) for place in range(8)]
    coloured = [Cell(Colour.RED if place % 2 else "red", place) for place in range(8)]
    nan = [Cell(math.nan, None)] * 8
    words = [Cell(("a", "b") if place % 2 else tuple("ab"), (Colour.RED,)) for place in range(8)]
    shared = [Cell({"k": [place]}, [0]) for place in range(8)]
    large = [Cell(np.full(1000, place, np.float32), 2**70) for place in range(8)]
    for cells in (floats, mixed, coloured, nan, words, shared, large):
        found = unpack(pack(cells, TYPES), TYPES)
        for cell, other in zip(cells, found, strict=True):
            assert same(cell.one, other.one)
            assert same(cell.other, other.other)
            assert not isinstance(cell.one, float) or math.copysign(1, cell.one) == math.copysign(1, other.one)
    found = unpack(pack(shared, TYPES), TYPES)
    assert found[0].other is not found[1].other, "what can be changed is nobody else's"


def test_what_many_have_in_common_goes_once() -> None:
    refs = [Key(place, 3) for place in range(64)]
    assert len(pack(refs, TYPES).envelope) < 100
    assert len(pack(refs[:7], TYPES).envelope) > 7 * len("type key")


def test_large_buffers_are_handed_over_and_not_copied() -> None:
    array = np.arange(LARGE, dtype=np.float32)
    parcel = pack({"big": array, "small": array[:4], "text": b"x" * LARGE}, NONE)
    assert len(parcel.envelope) < 200
    assert [len(buffer) for buffer in parcel.buffers] == [4 * LARGE, LARGE]
    assert np.shares_memory(np.frombuffer(parcel.buffers[0], np.float32), array)
    read = unpack(parcel, NONE)
    assert np.shares_memory(read["big"], array)
    assert read["small"].flags.writeable
    assert not np.shares_memory(read["small"], array)


def test_a_copy_shares_nothing_and_can_be_written() -> None:
    array, inner = np.zeros(LARGE), [1]
    copy = copied([array, inner], NONE, "it")
    copy[0][0] = 1.0
    copy[1].append(2)
    assert array[0] == 0.0
    assert inner == [1]


def test_an_array_that_is_a_view_travels_as_what_it_shows() -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4).T[::2]
    assert copied(array, NONE, "it").tolist() == [[0, 4, 8], [2, 6, 10]]


def test_a_config_section_is_validated_again() -> None:
    section = KLConfig(coefficient=0.25)
    assert copied(section, TYPES, "it") == section
    parcel = pack(section, TYPES)
    with pytest.raises(WireError, match="a message is no 'kl'"):
        unpack(Parcel(parcel.envelope.replace(b"coefficient", b"coefficieny")), TYPES)


class Plain:
    pass


class OwnDict(dict[str, int]):
    pass


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": [1, {2}]}, r"the value\['a'\]\[1\] is a set, which is no plain data; give a list"),
        ({(1,): 2}, r"the value has the key \(1,\), a tuple; keys are text or ints of 64 bits"),
        ({True: 2}, "has the key True, a bool"),
        ({2**64: 2}, "has the key 18446744073709551616"),
        ([np.float32(1)], r"the value\[0\] is a numpy.float32.*give a number of Python's, as value.item\(\)"),
        (np.array(["a"]), "the value is an array of dtype <U1; those that may travel: bool, int8"),
        (np.array([1j]), "an array of dtype complex128"),
        (np.array([Plain()]), "an array of dtype object"),
        (len, "a builtin_function_or_method, which is no plain data; a callable travels by name"),
        (Header(Key(0, 1), Colour.RED, {"a": {1}}), r"the value\.terms\['a'\] is a set"),  # type: ignore[dict-item]
        (OwnDict(a=1), r"the value is a .*OwnDict, which is no plain data"),
        (1 << 9000, "the value is an int of 1126 bytes; 1024 at most may travel"),
    ],
)
def test_what_is_no_plain_data_is_refused_with_its_type_and_place(value: Any, words: str) -> None:
    with pytest.raises(WireError, match=words):
        pack(value, TYPES)


def test_what_is_not_registered_is_refused_on_both_sides() -> None:
    with pytest.raises(WireError, match=r"the spec\[0\] is a .*Key, which is no plain data"):
        pack([Key(0, 1)], NONE, "the spec")
    with pytest.raises(WireError, match="is of the type 'key', which is not registered; registered: colour"):
        unpack(pack([Key(0, 1)], TYPES), WireTypes({"colour": Colour}))


def test_depth_and_size_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    deep: list[Any] = []
    for _ in range(MOST_DEPTH - 1):
        deep = [deep]
    copied(deep, NONE, "it")
    round_about: list[Any] = []
    round_about.append(round_about)
    with pytest.raises(WireError, match="nested deeper than 64, or holds itself"):
        pack(round_about, NONE)
    for depth in (MOST_DEPTH + 2, 5000):
        with pytest.raises(WireError):
            unpack(Parcel(b"\x91" * depth + b"\x00"), NONE)
    monkeypatch.setattr(wire_format, "MOST_ENVELOPE", 10)
    with pytest.raises(WireError, match="the argument takes 22 bytes beside its arrays; 10 may be sent at once"):
        pack("x" * 20 + "y", NONE, "the argument")
    with pytest.raises(WireError, match="has 12 bytes; 10 may be sent at once"):
        unpack(Parcel(b"\x00" * 12), NONE)


def tagged(*parts: Any) -> bytes:
    return bytes(msgpack.packb({None: list(parts)}))


@pytest.mark.parametrize(
    ("envelope", "buffers", "words"),
    [
        (b"\xc1", 0, "a message of 1 bytes is not msgpack"),
        (b"", 0, "a message of 0 bytes is not msgpack"),
        (msgpack.packb(1) + b"\x00", 0, "is not msgpack"),
        (msgpack.packb(msgpack.ExtType(4, b"")), 0, "is a ExtType of msgpack, which this codec has no use for"),
        (msgpack.packb({b"a": 1}), 0, r"has the key \"b'a'\"; keys are text or ints"),
        (b"\x82\x01\x02\x01\x03", 0, "has the key '1' twice"),
        (tagged("pickle", b""), 0, "has the mark 'pickle', which this codec does not have"),
        (msgpack.packb({None: 3}), 0, "a mark without anything marked"),
        (tagged("array", "float32", [2], b"\0" * 7), 0, "is an array of 2 × float32, but has 7 bytes"),
        (tagged("array", "object", [2], b"\0" * 16), 0, "is an array of dtype 'object'; there are bool"),
        (tagged("array", "float32", [-1], b""), 0, r"is an array of the shape \[-1\]"),
        (tagged("array", "float32", [0] * 33, b""), 0, "is an array of the shape"),
        (tagged("array", "bool", [2], b"\x01\x02"), 0, "a byte that is neither 0 nor 1"),
        (tagged("array", "uint8", [4], 0), 0, "lies in buffer 0, where 0 of 0 is next"),
        (tagged("array", "uint8", [4], 1), 2, "lies in buffer 1, where 0 of 2 is next"),
        (tagged("array", "uint8", [4]), 0, "has 2 parts, not 3"),
        (msgpack.packb([]), 1, "has 1 buffers and names 0"),
        (tagged("int", "4"), 0, "is an int of other than at most 1024 bytes"),
        (tagged("type", "os.system", "true"), 0, "is of the type 'os.system', which is not registered"),
        (tagged("type", "key", 1), 0, "is a 'key' with 1 fields, not 2"),
        (tagged("type", "colour", "green"), 0, "is no 'colour': 'green' is not a valid Colour"),
        (tagged("type"), 0, "is of a type without a name"),
        (tagged("many", "key"), 0, "are of a type without a name, or without a number"),
        (tagged("many", "key", 2**16 + 1, [True, 1], [True, 2]), 0, "are 65537 values; 65536 at most may go together"),
        (tagged("many", "key", True, [True, 1], [True, 2]), 0, "are True values"),
        (tagged("many", "key", 2, [True, 1]), 0, "are 'key' with 1 fields, not 2"),
        (tagged("many", "key", 2, [True, 1], [False, [1]]), 0, r"\[\]\.\w+ has other than 2 values"),
        (tagged("many", "key", 2, [True, 1], [1, [1, 2]]), 0, "is not said to be the same in all, or not"),
        (tagged("many", "key", 2, [True, 1], [True, [1, 2]]), 0, "is no number or text, which all could have"),
        (tagged("many", "key", 2, [True, 1], [True, 2]), 0, "are 2 times one 'key', which goes 2 times"),
        (tagged("many", "colour", 2, [False, ["red", "green"]]), 0, "has what is no 'colour': 'green' is not a valid"),
    ],
)
def test_malformed_messages_are_refused_with_the_place(envelope: bytes, buffers: int, words: str) -> None:
    with pytest.raises(WireError, match=words):
        unpack(Parcel(envelope, [memoryview(b"\0" * 4)] * buffers), TYPES)


def test_a_type_checks_itself_when_it_is_made_again() -> None:
    good = pack(Header(Key(3, 1), Colour.RED, {}), TYPES).envelope
    bad = good.replace(b"\xa3key\x03\x01", b"\xa3key\xff\x01")
    assert bad != good
    with pytest.raises(WireError, match="a message is no 'header': epoch -1 is below 0"):
        unpack(Parcel(bad), TYPES)


def test_only_plain_types_can_be_registered_each_under_one_name() -> None:
    @dataclass
    class Changing:
        a: int

    @dataclass(frozen=True)
    class Hidden:
        a: int = field(init=False, default=0)

    for kind, words in ((Changing, "is not frozen"), (Hidden, "nobody can give"), (Plain, "is no frozen dataclass")):
        with pytest.raises(TypeError, match=words):
            WireTypes({"it": kind})
    with pytest.raises(TypeError, match="Key is both 'a' and 'b'"):
        WireTypes({"a": Key, "b": Key})
    with pytest.raises(TypeError, match="'a' is Key and Colour"):
        WireTypes({"a": Key}).with_types(WireTypes({"a": Colour}))
    assert sorted(WireTypes({"a": Key}).with_types(WireTypes({"a": Key, "b": Colour}))) == ["a", "b"]
