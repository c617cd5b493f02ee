from __future__ import annotations

import math
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace.algorithms.kept_sets import KeptSets
from headrace.experience.records.codec import CodecError, decode_group, encode_group
from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus

json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
COLUMNS = ("tokens", "loss_mask", "logprobs", "versions", "branches")
DTYPES = (np.int32, np.bool_, np.float32, np.int32, np.int32)


def kept_sets(arrays: dict[str, np.ndarray], others: int) -> KeptSets:
    """Of each token in the mask: itself, and `others` ids beside, of a vocabulary of 50."""
    sets = [[(int(token) + i) % 50 for i in range(1 + others)] for token in arrays["tokens"][arrays["loss_mask"]]]
    ids = np.array([i for one in sets for i in one], np.int64)
    return KeptSets.of(ids, arrays["loss_mask"] * (1 + others), 50)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    key = GroupKey(*(draw(st.integers(-1, 2**40)) for _ in range(3)))
    samples = []
    for _ in range(draw(st.integers(0, 3))):
        length = draw(st.integers(0, 6))
        arrays = {name: draw(hnp.arrays(dtype, length)) for name, dtype in zip(COLUMNS, DTYPES, strict=True)}
        kept = draw(st.none() | st.builds(kept_sets, st.just(arrays), st.integers(0, 5)))
        at = draw(st.none() | st.floats(0.0625, 100, width=32))
        if kept is not None:
            arrays["tokens"] = arrays["tokens"] % kept.vocab_size
        samples.append(
            Sample(
                group=key,
                episode=draw(st.integers(0, 99)),
                index=draw(st.integers(0, 99)),
                status=draw(st.sampled_from(SampleStatus)),
                reward=draw(st.none() | st.floats(allow_nan=False)),
                failure=draw(st.none() | st.text()),
                metadata=draw(st.dictionaries(st.text(), json_like, max_size=3)),
                kept=kept,
                temperatures=None if at is None else arrays["loss_mask"] * np.float32(at),
                terms=draw(st.dictionaries(st.text(), st.floats(allow_nan=False), max_size=3)),
                **arrays,
            )
        )
    numbers = st.integers(0, 2**31)
    return Group(key, draw(st.text()), draw(numbers), draw(numbers), tuple(samples))


def small_group(**changes: Any) -> Group:
    key = GroupKey(1, 2, 3)
    values: dict[str, Any] = {
        "group": key,
        "episode": 0,
        "index": 0,
        "tokens": np.array([5, 6], np.int32),
        "loss_mask": np.array([False, True]),
        "logprobs": np.array([0, -0.5], np.float32),
        "versions": np.array([-1, 4], np.int32),
        "branches": np.array([-1, 0], np.int32),
        "status": SampleStatus.COMPLETED,
        "reward": 1.0,
    }
    return Group(key, "p7", 4, 6, (Sample(**{**values, **changes}),))


@settings(max_examples=100, deadline=None)
@given(groups())
def test_a_group_comes_back_as_it_was(group: Group) -> None:
    back = decode_group(encode_group(group))
    assert (back.key, back.prompt_id, back.start_version, back.deadline) == (
        group.key,
        group.prompt_id,
        group.start_version,
        group.deadline,
    )
    assert len(back.samples) == len(group.samples)
    for one, other in zip(back.samples, group.samples, strict=True):
        for name, dtype in zip(COLUMNS, DTYPES, strict=True):
            array = getattr(one, name)
            assert array.dtype == dtype
            assert array.flags.writeable
            assert array.tobytes() == getattr(other, name).tobytes()
        for name in ("group", "episode", "index", "status", "reward", "failure", "metadata", "terms"):
            assert getattr(one, name) == getattr(other, name)
            assert type(getattr(one, name)) is type(getattr(other, name))
        assert (one.temperatures is None) == (other.temperatures is None)
        if one.temperatures is not None and other.temperatures is not None:
            assert one.temperatures.tobytes() == other.temperatures.tobytes()
        assert (one.kept is None) == (other.kept is None)
        if one.kept is not None and other.kept is not None:
            assert one.kept.vocab_size == other.kept.vocab_size
            assert one.kept.counts.tobytes() == other.kept.counts.tobytes()
            assert one.kept.data.tobytes() == other.kept.data.tobytes()


def test_a_record_has_temperatures_only_where_tokens_have_them() -> None:
    without = msgpack.unpackb(encode_group(small_group()))
    own = small_group(temperatures=np.array([0, 0.5], np.float32))
    assert len(without[5][0][2]) == len(COLUMNS)
    assert msgpack.unpackb(encode_group(own))[5][0][2][-1] == ["<f4", 2, np.array([0, 0.5], "<f4").tobytes()]


@pytest.mark.parametrize("wrong", [[0.5, 0.5], [0, 0], [0, math.nan], [0, 1, 1]])
def test_a_temperature_goes_with_each_token_of_the_policys_and_with_no_other(wrong: list[float]) -> None:
    with pytest.raises(ValueError, match="not those of the tokens in its mask"):
        small_group(temperatures=np.array(wrong, np.float32))


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode_group(data)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 255))
def test_a_changed_byte_is_refused_or_gives_a_well_formed_group(place: int, byte: int) -> None:
    data = bytearray(encode_group(small_group(metadata={"turns": 2})))
    data[place % len(data)] = byte
    try:
        group = decode_group(bytes(data))
    except CodecError:
        return
    assert all(sample.tokens.dtype == np.int32 and len(sample) == len(sample.loss_mask) for sample in group.samples)


def test_a_cut_record_is_refused() -> None:
    data = encode_group(small_group())
    for end in range(len(data)):
        with pytest.raises(CodecError):
            decode_group(data[:end])


def test_another_format_is_named() -> None:
    with pytest.raises(CodecError, match="has format 1; this version of headrace reads 2"):
        decode_group(msgpack.packb([1, [0, 0, 0], "p", 0, 0, []]))


def test_a_dtype_is_not_taken_from_the_bytes() -> None:
    record = msgpack.unpackb(encode_group(small_group()))
    record[5][0][2][0][0] = "|O8"
    with pytest.raises(CodecError, match=r"tokens has dtype '\|O8', not '<i4'"):
        decode_group(msgpack.packb(record))


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"a": object()}, r"metadata.a is a object; give JSON-like values"),
        ({"a": [1, {2: 3}]}, r"metadata.a\[1\] has the key 2"),
        ({"a": 2**64}, "beyond 64 bits"),
        ({"a": float("nan")}, "no JSON value"),
        ({"a": (1, 2)}, "is a tuple"),
        (["a"], "metadata is a list"),
    ],
)
def test_metadata_that_is_not_json_like_is_refused(metadata: Any, words: str) -> None:
    with pytest.raises(CodecError, match=words):
        encode_group(small_group(metadata=metadata))


def test_an_array_of_another_dtype_is_refused() -> None:
    with pytest.raises(CodecError, match="an array of dtype int64"):
        encode_group(small_group(tokens=np.array([5, 6], np.int64)))


def test_a_token_takes_17_bytes_of_the_journal() -> None:
    """As docs/replay.md says: 4 of id, log-prob, version and branch each, 1 of the mask; the rest is per sample."""

    def size(length: int) -> int:
        key = GroupKey(0, 0, 0)
        sample = Sample(
            group=key,
            episode=0,
            index=0,
            tokens=np.zeros(length, np.int32),
            loss_mask=np.ones(length, np.bool_),
            logprobs=np.zeros(length, np.float32),
            versions=np.zeros(length, np.int32),
            branches=np.zeros(length, np.int32),
            status=SampleStatus.COMPLETED,
            reward=1.0,
        )
        return len(encode_group(Group(key, "p", 0, 0, (sample,))))

    assert size(3000) - size(2000) == 17 * 1000
    assert size(300) - 17 * 300 < 120
