"""Prompts: what a JSONL file may hold, and the order in which its rows are handed out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import ConfigError
from headrace.experience.prompts.dataset import Prompt, PromptDataset, PromptOrder, PromptSource, open_prompts
from headrace.experience.sample import GroupKey


def read(path: Path, *lines: Any, **options: Any) -> PromptDataset:
    """Dicts are written as JSON, strings and bytes as they are."""
    raw = [json.dumps(line) if not isinstance(line, str | bytes) else line for line in lines]
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in raw))
    return PromptDataset(open_prompts(str(path), **{"prompt_column": "prompt", **options}))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "train.jsonl"


def dataset(size: int) -> PromptDataset:
    return PromptDataset([Prompt(str(i), f"prompt {i}", {}) for i in range(size)])


def test_rows_become_prompts_with_line_numbers_as_ids(file: Path) -> None:
    messages = [{"role": "user", "content": "1+1?"}]
    rows = read(file, {"prompt": "2+2=", "answer": 4}, "", {"prompt": messages, "answer": None}, "")
    assert len(rows) == 2
    assert rows[0] == Prompt("1", "2+2=", {"prompt": "2+2=", "answer": 4})
    assert rows[1].prompt_id == "3"
    assert rows[1].content == messages
    assert [prompt.prompt_id for prompt in rows] == ["1", "3"]


def test_ids_come_from_the_id_column(file: Path) -> None:
    rows = read(file, {"q": "a", "key": 7}, {"q": "b", "key": "x"}, prompt_column="q", id_column="key")
    assert [prompt.prompt_id for prompt in rows] == ["7", "x"]


def test_byte_order_mark_and_non_ascii_text_are_read(file: Path) -> None:
    rows = read(file, b"\xef\xbb\xbf" + json.dumps({"prompt": "é😀"}).encode())
    assert rows[0].content == "é😀"


@pytest.mark.parametrize(
    ("lines", "options", "said"),
    [
        ([], {}, "holds no rows"),
        (["", "  "], {}, "holds no rows"),
        ([{"prompt": "a"}, "{'prompt': 'b'}"], {}, "line 2 is not JSON"),
        ([b'{"prompt": "\xff"}'], {}, "line 1 is not JSON"),
        (['{"prompt": "a", "answer": NaN}'], {}, "NaN is no JSON value"),
        (['{"prompt": "a", "answer": [-1e999]}'], {}, "line 1 is not JSON (-1e999 is larger than any number)"),
        (['{"prompt": "\\ud800"}'], {}, "line 1 is not JSON"),
        (["[" * 100_000], {}, "line 1 is not JSON"),
        ([{"prompt": "a"}, "[1]"], {}, "line 2 is a JSON list"),
        (["3"], {}, "line 1 is a JSON number"),
        (
            [{"question": "a", "answer": 1}],
            {},
            "no prompt column 'prompt' (it has 'question', 'answer'); set data.prompt_column to one of them",
        ),
        ([{}], {}, "(it has no columns)"),
        ([{"prompt": 3}], {}, "is a JSON number; give text"),
        ([{"prompt": None}], {}, "is a JSON null; give text"),
        ([{"prompt": ["a"]}], {}, "message 1 is 'a'; give {'role': text, 'content': text}"),
        ([{"prompt": [{"role": "user"}]}], {}, "message 1 (of user) has no content; give"),
        ([{"prompt": [{"role": "user", "content": [{"type": "text"}]}]}], {}, "the part {'type': 'text'}, and"),
        ([{"prompt": ""}], {}, "empty prompt"),
        ([{"prompt": []}], {}, "empty prompt"),
        (
            [{"prompt": "a", "answer": 1}, {"prompt": "b"}],
            {"required_columns": ["answer"]},
            "line 2 has no value in",
        ),
        ([{"prompt": "a", "answer": None}], {"required_columns": ["answer"]}, "column 'answer'"),
        ([{"prompt": "a"}], {"id_column": "id"}, "no id column 'id' (it has 'prompt')"),
        ([{"prompt": "a", "id": 1.5}], {"id_column": "id"}, "is 1.5; give text or a whole number"),
        ([{"prompt": "a", "id": True}], {"id_column": "id"}, "is True; give text"),
        (
            [{"prompt": "a", "id": 1}, {"prompt": "b", "id": "1"}],
            {"id_column": "id"},
            "line 2 has the id '1' of line 1",
        ),
    ],
)
def test_bad_file_is_one_error_that_names_file_line_and_mend(
    file: Path, lines: list[Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(file, *lines, **options)
    assert said in str(caught.value)
    assert str(file) in str(caught.value)
    assert ";" in str(caught.value), "the mend follows a semicolon"


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    for path, said in ((tmp_path / "none.jsonl", "no dataset at"), (tmp_path, "cannot read .*give a file, a folder")):
        with pytest.raises(ConfigError, match=said) as caught:
            open_prompts(str(path), prompt_column="prompt")
        assert str(path) in str(caught.value)


@settings(deadline=None)
@given(size=st.integers(1, 200), seed=st.integers(0, 2**32 - 1), epoch=st.integers(0, 10_000))
def test_every_epoch_is_a_permutation_fixed_by_seed_and_epoch(size: int, seed: int, epoch: int) -> None:
    order = PromptOrder(size, seed, shuffle=True)
    rows = [order.row(epoch, position) for position in range(size)]
    assert sorted(rows) == list(range(size))
    other = PromptOrder(size, seed, shuffle=True)
    for earlier in range(8):  # whatever was asked for before, and whatever was forgotten since
        other.row(earlier, 0)
    assert [other.row(epoch, position) for position in range(size)] == rows


def test_shuffle_is_the_same_on_every_machine_and_differs_between_epochs_and_seeds() -> None:
    """Philox4x64-10 streams are fixed, so these are too."""
    order = PromptOrder(8, seed=7, shuffle=True)
    first = [order.row(0, position) for position in range(8)]
    assert first == [4, 1, 6, 3, 2, 7, 5, 0]
    assert first != [order.row(1, position) for position in range(8)]
    assert first != [PromptOrder(8, seed=8, shuffle=True).row(0, position) for position in range(8)]


def test_without_shuffle_rows_keep_file_order_and_bounds_are_checked() -> None:
    order = PromptOrder(3, seed=0, shuffle=False)
    assert [order.row(5, position) for position in range(3)] == [0, 1, 2]
    for position in (-1, 3):
        with pytest.raises(IndexError, match=f"position {position} of an epoch of 3"):
            order.row(0, position)


def source(size: int, epochs: int | None = 1, **options: Any) -> PromptSource:
    order = PromptOrder(size, seed=1, shuffle=False)
    return PromptSource(dataset(size), order, epochs=epochs, **{"max_attempts": 3, **options})


def drain(prompts: PromptSource) -> list[tuple[int, int, int]]:
    keys = []
    while (issued := prompts.next()) is not None:
        assert issued.prompt == prompts.prompt(issued.key.epoch, issued.key.position)
        keys.append(tuple(issued.key))
    return keys


def test_source_hands_out_every_prompt_of_every_epoch_once() -> None:
    assert drain(source(2, epochs=2)) == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]


def test_source_without_epochs_never_ends() -> None:
    prompts = source(2, epochs=None)
    keys = [issued.key for _ in range(101) if (issued := prompts.next())]
    assert keys[-1] == (50, 0, 0)


def test_returned_prompt_comes_back_first_as_the_next_attempt_until_exhausted() -> None:
    prompts = source(3)
    first = prompts.next()
    assert first is not None
    assert prompts.returned(first.key)
    assert drain(prompts) == [(0, 0, 1), (0, 1, 0), (0, 2, 0)]
    assert prompts.returned(GroupKey(0, 0, 1)), "a return after the end is handed out too"
    assert drain(prompts) == [(0, 0, 2)]
    assert not prompts.returned(GroupKey(0, 0, 2)), "the third attempt was the last of three"
    assert prompts.next() is None


@settings(deadline=None)
@given(size=st.integers(1, 9), epochs=st.integers(1, 3), data=st.data())
def test_source_resumed_at_its_frontier_hands_out_exactly_the_rest(size: int, epochs: int, data: st.DataObject) -> None:
    taken = data.draw(st.integers(0, size * epochs))
    prompts = source(size, epochs)
    before = [tuple(issued.key) for _ in range(taken) if (issued := prompts.next())]
    resumed = source(size, epochs, frontier=prompts.frontier)
    assert before + drain(resumed) == drain(source(size, epochs))


def test_frontier_beyond_the_dataset_says_that_the_dataset_was_changed() -> None:
    with pytest.raises(ConfigError, match=r"prompt 5 of epoch 1, but the dataset has 4 rows.*--fresh"):
        source(4, frontier=(1, 5))
