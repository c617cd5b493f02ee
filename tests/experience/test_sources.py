"""Sources of prompts: each format gives the same rows, and what is damaged is told with its row and the mend."""

from __future__ import annotations

import csv
import datetime
import decimal
import errno
import gzip
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.config import ConfigError
from headrace.config.data import SourceConfig
from headrace.experience.prompts.dataset import SourcePrompts, open_prompts
from headrace.store import DiskFull

ROWS = [{"prompt": f"{i} + {i} =\n", "answer": str(2 * i), "level": str(i % 7)} for i in range(1, 301)]
"""All values are text, which every format has."""


def _lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _csv(path: Path, rows: list[dict[str, Any]], delimiter: str = ",") -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)


def _gz(path: Path, data: bytes) -> None:
    path.write_bytes(gzip.compress(data))


def _zst(path: Path, data: bytes) -> None:
    """Two frames."""
    half = len(data) // 2
    path.write_bytes(zstandard.compress(data[:half]) + zstandard.compress(data[half:]))


def _arrow_file(path: Path, rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=70)


def _arrow_stream(path: Path, rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


WRITERS: dict[str, Callable[[Path, list[dict[str, Any]]], Any]] = {
    "t.jsonl": lambda path, rows: path.write_bytes(_lines(rows)),
    "t.jsonl.gz": lambda path, rows: _gz(path, _lines(rows)),
    "t.jsonl.zst": lambda path, rows: _zst(path, _lines(rows)),
    "t.json": lambda path, rows: path.write_text(json.dumps(rows, indent=1)),
    "lines.json": lambda path, rows: path.write_bytes(_lines(rows)),
    "t.json.gz": lambda path, rows: _gz(path, json.dumps(rows).encode()),
    "t.csv": _csv,
    "t.tsv": lambda path, rows: _csv(path, rows, "\t"),
    "t.parquet": lambda path, rows: pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=70),
    "t.arrow": _arrow_file,
    "stream.arrow": _arrow_stream,
    "t.feather": lambda path, rows: pyarrow.feather.write_feather(pa.Table.from_pylist(rows), path, compression="lz4"),
    "saved": lambda path, rows: datasets.Dataset.from_list(rows).save_to_disk(path),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_rows_in_any_order(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    WRITERS[name](path, ROWS)
    prompts = open_prompts(str(path), prompt_column="prompt", required_columns=["answer"])
    assert [prompt.row for prompt in prompts] == ROWS
    assert [prompts[place].prompt_id for place in (299, 0, 70, 128)] == ["300", "1", "71", "129"]
    assert prompts[131].content == "132 + 132 =\n"
    assert prompts.lengths.tolist() == [len(row["prompt"]) for row in ROWS]
    with pytest.raises(IndexError):
        prompts[300]


@pytest.mark.parametrize("name", WRITERS)
def test_contents_follow_from_the_rows_alone(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name, ROWS)
    (tmp_path / "plain.jsonl").write_bytes(_lines(ROWS))
    told = open_prompts(str(tmp_path / name), prompt_column="prompt").contents()
    assert told == open_prompts(str(tmp_path / "plain.jsonl"), prompt_column="prompt").contents()
    changed = [*ROWS[:150], {**ROWS[150], "prompt": "another"}, *ROWS[151:]]
    (tmp_path / "plain.jsonl").write_bytes(_lines(changed))
    assert told != open_prompts(str(tmp_path / "plain.jsonl"), prompt_column="prompt").contents()


VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "2 + 2?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"split": "train", "index": 0, "answer": "2 + 2 = 4"},
}


def _tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}


def _called(name: str, **arguments: Any) -> list[dict[str, Any]]:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return [{"role": "assistant", "content": "", "tool_calls": [call]}]


WITH_TOOLS = [
    {
        "prompt": [{"role": "user", "content": "Ulm?"}, *_called("weather", city="Ulm")],
        "tools": [_tool("weather", city={"type": "string"})],
        "extra": {"a": 1, "b": None},
    },
    {
        "prompt": [{"role": "user", "content": "1+1?"}, *_called("sum", of=[{"n": 1}, {"m": 1}]), *_called("now")],
        "tools": [_tool("sum", of={"type": "array", "enum": ["a", None]}), _tool("now")],
        "extra": {"a": None, "b": 2},
    },
]


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet", "t.arrow", "saved"])
def test_tools_and_calls_have_what_their_own_row_has_in_every_format(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name, WITH_TOOLS)
    prompts = open_prompts(str(tmp_path / name), prompt_column="prompt", tools_column="tools")
    assert [prompt.content for prompt in prompts] == [row["prompt"] for row in WITH_TOOLS]
    assert [prompt.tools for prompt in prompts] == [row["tools"] for row in WITH_TOOLS]
    assert [prompt.row for prompt in prompts] == WITH_TOOLS


def test_a_null_argument_of_a_line_of_json_is_kept(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(_lines([{"prompt": _called("weather", city=None)}]))
    (prompt,) = open_prompts(str(tmp_path / "t.jsonl"), prompt_column="prompt")
    assert prompt.content == _called("weather", city=None)


def test_verls_parquet_is_read_as_it_is(tmp_path: Path) -> None:
    rows = [{**VERL, "extra_info": {**VERL["extra_info"], "index": i}} for i in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train.parquet")
    prompts = open_prompts(
        str(tmp_path / "train.parquet"),
        prompt_column="prompt",
        id_column="extra_info.index",
        required_columns=["reward_model.ground_truth", "data_source"],
    )
    assert [prompt.prompt_id for prompt in prompts] == ["0", "1", "2"]
    assert prompts[1].content == [{"role": "user", "content": "2 + 2?"}]
    row = dict(prompts[2].row)
    assert row.pop("reward_model.ground_truth") == "4", "a nested column is there by the name that it was given"
    assert row.pop("extra_info.index") == 2
    assert row == rows[2]
    with pytest.raises(ConfigError, match=r"train.parquet, row 1 has no value in column 'reward_model.truth' \(it has"):
        open_prompts(str(tmp_path / "train.parquet"), prompt_column="prompt", required_columns=["reward_model.truth"])


def test_a_nested_prompt_column_and_a_plain_one_with_a_dot_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(_lines([{"q": {"text": "a"}, "q.text": "b"}, {"q": {"text": "c"}}]))
    prompts = open_prompts(str(tmp_path / "t.jsonl"), prompt_column="q.text")
    assert [prompt.content for prompt in prompts] == ["b", "c"]


def test_columns_of_other_types_become_json(tmp_path: Path) -> None:
    table = pa.table(
        {
            "prompt": pa.array(["a"]).dictionary_encode(),
            "picture": pa.array([b"\x00"]),
            "frames": pa.array([[{"bytes": b"\x00"}]]),
            "at": [datetime.datetime(2024, 1, 2, 3, 4, 5)],
            "price": [decimal.Decimal("1.50")],
            "score": [float("nan")],
            "tags": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    (prompt,) = open_prompts(str(tmp_path / "t.parquet"), prompt_column="prompt")
    assert prompt.row == {
        "prompt": "a",
        "at": "2024-01-02T03:04:05",
        "price": "1.50",
        "score": None,
        "tags": {"k": 1},
    }, "columns that hold bytes are left out"
    json.dumps(prompt.row, allow_nan=False)


def test_null_fields_of_messages_are_absent_ones(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi", "name": None}, {"role": "user", "content": "ho", "name": "x"}]
    pq.write_table(pa.Table.from_pylist([{"prompt": messages}]), tmp_path / "t.parquet")
    (prompt,) = open_prompts(str(tmp_path / "t.parquet"), prompt_column="prompt")
    assert prompt.content == [{"role": "user", "content": "hi"}, {"role": "user", "content": "ho", "name": "x"}]


def _damaged(tmp_path: Path) -> list[tuple[str, bytes, str]]:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "whole.parquet")
    parquet = (tmp_path / "whole.parquet").read_bytes()
    packed, zst = gzip.compress(_lines(ROWS)), zstandard.compress(_lines(ROWS))
    return [
        ("a.jsonl", _lines(ROWS)[:-30], "line 300 is not JSON"),
        ("b.jsonl", parquet, "another kind by its content, Parquet"),
        ("c.jsonl", packed, "another kind by its content, gzip"),
        ("d.jsonl.gz", packed[: len(packed) // 2], "is damaged, or no such archive .*fetch or pack it again"),
        ("e.jsonl.gz", _lines(ROWS), "no such archive"),
        ("f.jsonl.zst", zst[: len(zst) // 2], "is damaged, or no such archive .*ends in the midst"),
        ("g.jsonl.zst", _lines(ROWS), "no such archive"),
        ("h.json", json.dumps(ROWS).encode()[:-20], "row 300 is not JSON"),
        ("i.json", json.dumps(ROWS).encode()[:-1], "after row 300 comes ''.*write a whole list"),
        ("j.json", b'{"prompt": ["a", "b"]', "line 1 is not JSON"),
        ("k.json", b"[1]", "row 1 is a JSON number"),
        ("l.json", b'[{"prompt": "a"}] x', "goes on after the end of its list"),
        ("m.json", b'"text"', "write a list of objects"),
        ("n.json", b"[]", "holds no rows"),
        ("o.json", b'[{"prompt": "a", "prompt": "b"}]', "row 1 is not JSON .*'prompt' twice"),
        ("p.csv", b"prompt,answer\na,b\nc\n", r"row 2 \(line 3\) has 1 cells, and the header 2 columns; put cells"),
        ("q.csv", b'prompt,answer\na,"b\n', "row 1 is no CSV"),
        ("r.csv", b"prompt,prompt\na,b\n", "two columns 'prompt'; rename one"),
        ("s.csv", b"", "no name for each column"),
        ("t.csv", b"prompt\n\xff\n", "is no CSV .*write UTF-8"),
        ("u.csv", b"prompt,answer\n,b\n", "row 1: the prompt in column 'prompt' is a JSON null"),
        ("v.parquet", parquet[: len(parquet) // 2], "is no Parquet file, or is damaged"),
        ("w.parquet", parquet[:200] + b"\xff" * 200 + parquet[400:], "is no Parquet file, or is damaged|is not"),
        ("x.parquet", _lines(ROWS), "is no Parquet file"),
        ("y.arrow", parquet, "is no Arrow file"),
        ("z.txt", b"a", r"has the suffix '.txt', which is no format.*use .jsonl, "),
        ("parquet.parquet.gz", packed, "packed twice"),
        ("empty.arrow", b"", "is no Arrow file"),
        ("empty.parquet", b"", "is no Parquet file"),
        ("empty.jsonl.gz", b"", "holds no rows"),
        ("empty.jsonl.zst", b"", "holds no rows"),
    ]


def test_what_is_damaged_or_not_what_its_suffix_says_is_told(tmp_path: Path) -> None:
    for name, data, said in _damaged(tmp_path):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ConfigError, match=said) as caught:
            open_prompts(str(tmp_path / name), prompt_column="prompt")
        assert str(tmp_path / name) in str(caught.value), name
        assert "\n" not in str(caught.value), name


@pytest.mark.parametrize("name", [name for name in WRITERS if "csv" not in name and "tsv" not in name])
def test_a_bad_row_is_named_in_every_format(tmp_path: Path, name: str) -> None:
    bad = [*ROWS[:200], {"prompt": "x", "answer": None, "level": "1"}, *ROWS[201:]]
    WRITERS[name](tmp_path / name, bad)
    unit = "line" if name in ("t.jsonl", "t.jsonl.gz", "t.jsonl.zst", "lines.json") else "row"
    with pytest.raises(ConfigError, match=f"{name}, {unit} 201 has no value in column 'answer'.*; fill it in"):
        open_prompts(str(tmp_path / name), prompt_column="prompt", required_columns=["answer"])
    bad[200] = {**ROWS[0], "prompt": ""}
    WRITERS[name](tmp_path / ("1" + name), bad)
    with pytest.raises(ConfigError, match=f"{name}, {unit} 201 has an empty prompt"):
        open_prompts(str(tmp_path / ("1" + name)), prompt_column="prompt")


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet", "saved"])
def test_ids_are_unique_within_a_source_and_numbers_are_read(tmp_path: Path, name: str) -> None:
    rows = [{**row, "id": i, "level": i % 5} for i, row in enumerate(ROWS)]
    WRITERS[name](tmp_path / name, rows)
    prompts = open_prompts(str(tmp_path / name), prompt_column="prompt", id_column="id", numbers="level", name="s")
    assert prompts[7].prompt_id == "s/7"
    assert prompts.numbers.tolist() == [i % 5 for i in range(300)]
    WRITERS[name](tmp_path / ("2" + name), [*rows[:250], {**rows[250], "id": 3}, *rows[251:]])
    with pytest.raises(ConfigError, match=r"(line|row) 251 has the id '3' of (line|row) 4 \(column 'id'\)"):
        open_prompts(str(tmp_path / ("2" + name)), prompt_column="prompt", id_column="id")
    with pytest.raises(ConfigError, match=r"(line|row) 1 has '1 \+ 1 =.*by which data.curriculum orders"):
        open_prompts(str(tmp_path / name), prompt_column="prompt", numbers="prompt")


def test_rows_are_handed_to_the_check_with_their_names_whatever_the_format(tmp_path: Path) -> None:
    for name in ("t.jsonl", "t.parquet"):
        WRITERS[name](tmp_path / name, ROWS)
        seen: list[tuple[str, Any]] = []

        def check(rows: Any, seen: list[tuple[str, Any]] = seen) -> None:
            seen += [(where, row["answer"]) for where, row in rows]

        open_prompts(str(tmp_path / name), prompt_column="prompt", read_columns=["answer"], check=check)
        unit = "line" if name == "t.jsonl" else "row"
        assert seen == [(f"{tmp_path / name}, {unit} {i}", str(2 * i)) for i in range(1, 301)]


def test_splits_and_subsets_of_folders(tmp_path: Path) -> None:
    both = datasets.DatasetDict(
        {"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(ROWS[:10])}
    )
    both.save_to_disk(tmp_path / "both")
    folder = tmp_path / "files"
    for subset in ("easy", "hard"):
        (folder / subset).mkdir(parents=True)
        for number in range(2):
            part = ROWS[: 20 if subset == "easy" else 4][number::2]
            pq.write_table(pa.Table.from_pylist(part), folder / subset / f"train-0000{number}.parquet")
    configs = "".join(f"- config_name: {name}\n  data_files: {name}/*.parquet\n" for name in ("easy", "hard"))
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")

    def size(**options: Any) -> int:
        return len(open_prompts(SourceConfig(**options), prompt_column="prompt"))

    assert size(path=str(tmp_path / "both"), split="test") == 10
    assert size(path=str(folder), subset="easy", split="train") == 20
    assert size(path=str(folder), subset="hard") == 4, "the only split"
    for options, said in (
        ({"path": str(tmp_path / "both")}, "has the splits train, test; set split to one of them"),
        ({"path": str(tmp_path / "both"), "split": "dev"}, "has the splits train, test, not 'dev'; correct split"),
        ({"path": str(tmp_path / "both"), "subset": "a"}, "has no subsets; leave subset out"),
        ({"path": str(folder), "revision": "main"}, "has no revision 'main'; leave revision out"),
        ({"path": str(folder)}, "easy.*hard"),
        ({"path": str(folder), "subset": "easy", "split": "dev"}, "dev"),
    ):
        with pytest.raises(ConfigError, match=said):
            size(**options)
    (tmp_path / "t.jsonl").write_bytes(_lines(ROWS))
    with pytest.raises(ConfigError, match="is a file, which has no split; leave split out"):
        size(path=str(tmp_path / "t.jsonl"), split="train")


def test_a_hub_name_is_asked_for_with_its_subset_split_and_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes to the package `datasets`, in place of the network."""
    asked: list[Any] = []

    def load_dataset(path: str, **options: Any) -> datasets.Dataset:
        asked.append((path, options))
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    source = SourceConfig(path="openai/gsm8k", subset="main", split="train[:10%]", revision="v1")
    assert len(open_prompts(source, prompt_column="prompt")) == len(ROWS)
    assert asked == [("openai/gsm8k", {"name": "main", "split": "train[:10%]", "revision": "v1"})]


def test_a_name_that_is_nowhere_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot read 'nobody/nothing' .*a name on the Hub"):
        open_prompts("nobody/nothing", prompt_column="prompt")
    for name in ("data/train.parquet", "a/b/c", "./x"):
        with pytest.raises(ConfigError, match="no dataset at"):
            open_prompts(name, prompt_column="prompt")
    with pytest.raises(ConfigError, match="is an address, and none is read; fetch the file"):
        open_prompts("https://host/train.jsonl", prompt_column="prompt")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(ConfigError, match="neither file nor folder"):
        open_prompts("pipe.jsonl", prompt_column="prompt")


def test_a_file_that_changes_while_it_is_in_use_is_told(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(_lines(ROWS))
    prompts = open_prompts(str(path), prompt_column="prompt")
    with path.open("ab") as file:
        file.write(b'{"prompt": "more"}\n')
    with pytest.raises(ConfigError, match=r"t.jsonl was changed while it is in use; put it back"):
        prompts[0]


def test_copies_leave_nothing_behind_and_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "spare"))
    (tmp_path / "spare").mkdir()
    held: list[SourcePrompts] = []
    for name in ("t.parquet", "t.json", "t.csv", "t.jsonl.gz"):
        WRITERS[name](tmp_path / name, ROWS)
        held.append(open_prompts(str(tmp_path / name), prompt_column="prompt"))
    assert list((tmp_path / "spare").iterdir()) == []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(ConfigError, match=r"cannot unpack .*t.csv into .*gone: No such file.*set TMPDIR"):
        open_prompts(str(tmp_path / "t.csv"), prompt_column="prompt")


def test_without_the_extra_the_mend_is_named(tmp_path: Path) -> None:
    """A process of its own, in which the packages cannot be imported."""
    for name in ("t.parquet", "t.arrow", "saved", "t.jsonl.zst", "t.jsonl.gz"):
        WRITERS[name](tmp_path / name, ROWS)
    program = """
import sys
for name in ("pyarrow", "datasets", "zstandard"):
    sys.modules[name] = None
from headrace.config import ConfigError
from headrace.experience.prompts.dataset import open_prompts
for name in sys.argv[1:]:
    try:
        print(len(open_prompts(name, prompt_column="prompt")))
    except ConfigError as error:
        print(error)
"""
    names = ["t.parquet", "t.arrow", "saved", "t.jsonl.zst", "t.jsonl.gz"]
    done = subprocess.run(
        [sys.executable, "-c", program, *names], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    *refused, packed = done.stdout.splitlines()
    assert packed == "300", "gzip needs no extra"
    for line, package in zip(refused, ("pyarrow", "pyarrow", "datasets", "zstandard"), strict=True):
        assert f"needs the package {package}, which is not installed; pip install 'headrace[datasets]'" in line


_JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    extras=st.lists(st.dictionaries(st.text(max_size=4), _JSON_VALUES, max_size=3), min_size=1, max_size=5),
    chunk=st.integers(1, 40),
    indent=st.sampled_from([None, 0, 3]),
    escaped=st.booleans(),
)
def test_a_list_is_read_in_pieces_of_any_size(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    extras: list[dict[str, Any]],
    chunk: int,
    indent: int | None,
    escaped: bool,
) -> None:
    """Wherever a piece ends: in a word, a number, an escape, between elements."""
    monkeypatch.setattr("headrace.experience.sources.text_files._CHUNK", chunk)
    rows = [{**extra, "prompt": f"p{i}"} for i, extra in enumerate(extras)]
    (tmp_path / "t.json").write_text(json.dumps(rows, indent=indent, ensure_ascii=escaped), encoding="utf-8")
    assert [prompt.row for prompt in open_prompts(str(tmp_path / "t.json"), prompt_column="prompt")] == rows


@pytest.mark.parametrize("name", ["t.jsonl", "t.json", "t.csv", "t.jsonl.gz", "t.parquet", "saved"])
def test_no_source_is_in_memory_as_objects(tmp_path: Path, name: str) -> None:
    rows = [{"prompt": f"{i} " + "x" * 2000, "answer": str(i)} for i in range(8000)]
    WRITERS[name](tmp_path / name, rows)
    del rows
    open_prompts(str(tmp_path / name), prompt_column="prompt")  # what is imported and cached once
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        prompts = open_prompts(str(tmp_path / name), prompt_column="prompt", required_columns=["answer"])
        seen = [prompts[place].row["answer"] for place in range(0, 8000, 100)]
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen == [str(place) for place in range(0, 8000, 100)]
    assert held < 1 << 20, "of 16 MiB of text"
    assert peak < 12 << 20
    assert pa.total_allocated_bytes() - before < 1 << 20


@pytest.mark.parametrize("name", ["t.csv", "t.json", "t.jsonl.gz", "t.parquet"])
def test_a_copy_for_which_there_is_no_room_is_told(tmp_path: Path, name: str) -> None:
    """A process whose files may not grow beyond 64 KiB."""
    WRITERS[name](tmp_path / name, [{"prompt": f"{i} " + "x" * 2000, "answer": "1"} for i in range(500)])
    program = """
import resource, signal, sys
from headrace.config import ConfigError
from headrace.experience.prompts.dataset import open_prompts
import pyarrow.parquet
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
try:
    open_prompts(sys.argv[1], prompt_column="prompt")
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program, name], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"cannot unpack {name} into "), done.stdout
    assert "its disk is full; make room there, or set TMPDIR to a folder on a larger disk" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_full_while_a_data_set_is_cached_is_told_as_that(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_dataset(path: str, **options: Any) -> datasets.Dataset:
        raise datasets.exceptions.DatasetGenerationError("An error occurred") from OSError(number, "it is full")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DiskFull, match=r"^no space left while the package datasets cached 'a/name' .*HF_HOME"):
        open_prompts(SourceConfig(path="a/name"), prompt_column="prompt")


def test_memory_that_runs_out_while_a_data_set_is_read_is_no_fault_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(path: str, **options: Any) -> datasets.Dataset:
        raise datasets.exceptions.DatasetGenerationError("An error occurred") from MemoryError()

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(datasets.exceptions.DatasetGenerationError):
        open_prompts(SourceConfig(path="a/name"), prompt_column="prompt")
