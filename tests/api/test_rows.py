"""Rows given in Python, as lines of JSON."""

import json
import types
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.given.given_rows import lines_of
from headrace.config import ConfigError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=4))
def test_rows_of_json_come_back_as_they_are(rows: list[dict[str, Any]]) -> None:
    lines = list(lines_of(iter(rows), "data"))
    assert [json.loads(line) for line in lines] == rows
    assert all(line.count(b"\n") == 1 and line.endswith(b"\n") for line in lines)


def test_arrays_and_their_numbers_are_lists_and_numbers() -> None:
    row = {"a": np.int64(3), "b": np.float32(0.5), "c": np.arange(3), "d": (True, np.bool_(False)), 5: None}
    (line,) = lines_of([row], "data")
    assert json.loads(line) == {"a": 3, "b": 0.5, "c": [0, 1, 2], "d": [True, False], "5": None}


class Frame:
    """Of pandas' make."""

    columns = ("prompt", "score")

    def to_dict(self, orient: str) -> list[dict[str, Any]]:
        assert orient == "records"
        return [{"prompt": "a", "score": float("nan")}]


def test_what_a_frame_lacks_is_null() -> None:
    assert list(lines_of(Frame(), "data")) == [b'{"prompt": "a", "score": null}\n']
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"prompt": ["a", "b"], "n": [1, None], "k": pandas.array([1, None], dtype="Int64")})
    assert [json.loads(line) for line in lines_of(frame, "data")] == [
        {"prompt": "a", "n": 1.0, "k": 1},
        {"prompt": "b", "n": None, "k": None},
    ]


def test_a_dataset_is_rows() -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"prompt": [{"role": "user", "content": "2+2"}], "answer": "4"}, {"prompt": [], "answer": None}]
    assert [json.loads(line) for line in lines_of(datasets.Dataset.from_list(rows), "data")] == rows
    with pytest.raises(ConfigError, match=r"^data is a DatasetDict of train, not rows; give one of them"):
        list(lines_of(datasets.DatasetDict(train=datasets.Dataset.from_list(rows)), "data"))


def test_tools_and_calls_of_a_table_have_what_their_own_row_has() -> None:
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    rows = [
        {"tools": [{"name": name, "parameters": {"type": "object", "properties": {one: {"type": kind}}}}], "n": None}
        for name, one, kind in (("weather", "city", "string"), ("count", "up_to", "integer"))
    ]
    dataset = datasets.Dataset.from_list(rows)
    assert dataset[0]["tools"] != rows[0]["tools"], "the other row's parameter is there, null"
    for table in (dataset, pandas.DataFrame(list(dataset))):
        assert [json.loads(line) for line in lines_of(table, "data")] == rows
    (line,) = lines_of([dataset[0]], "data")
    assert json.loads(line) == dataset[0], "rows that are dicts are as they are given"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (["a"], r"^data: row 0 is a str; give rows as dicts"),
        ({"prompt": ["a"]}, r"^data is a dict of prompt, not rows"),
        (5, r"^data is a int; give rows as dicts"),
        (b"a", r"^data is a bytes"),
        ([{}, {"at": datetime(2026, 1, 1)}], r"^data: row 1, column 'at' is a datetime, which JSON has no form for"),
        ([{"x": [float("inf")]}], r"^data: row 0, column 'x' is inf, which JSON has no form for"),
        ([{"x": {"y": types.SimpleNamespace()}}], r"column 'x' is a SimpleNamespace"),
        ([{"x": Path("a")}], r"column 'x' is a PosixPath"),
    ],
)
def test_what_is_no_row_is_refused(data: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        list(lines_of(data, "data"))


def test_a_row_that_holds_itself_is_refused() -> None:
    row: dict[str, Any] = {"prompt": "a"}
    row["self"] = row
    with pytest.raises(ConfigError, match=r"^data: row 0 holds itself"):
        list(lines_of([row], "data"))
