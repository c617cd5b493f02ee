"""The record of rollouts: what is written is found, by every condition and in every order."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.store import RunDamaged, StoreError
from headrace.store.rollouts import ORDERS, Query, Rollout, Rollouts, RolloutsReader, Turn

ONE = Rollout(
    batch=3,
    at=12.5,
    key=(0, 7, 1),
    episode=2,
    sample=0,
    prompt_id="p",
    status="completed",
    reason=None,
    reward=0.5,
    advantage=-1.25,
    tokens=4,
    staleness=1,
    turns=(Turn(False, 'What is "2" + 2?\n'), Turn(True, "Ünmöglich \U0001f600 4"), Turn(False, ""), Turn(True, "x")),
    data=b"\x00\xff",
)


def read(path: Path, **conditions: object) -> list[Rollout]:
    with RolloutsReader(path) as reader:
        return reader.read(Query(**conditions))  # type: ignore[arg-type]


def test_one_comes_back_as_it_was(tmp_path: Path) -> None:
    assert not RolloutsReader.exists(tmp_path)
    writer = Rollouts(tmp_path)
    failed = replace(
        ONE, episode=3, status="failed", reason="reward: boom", reward=None, advantage=None, staleness=None
    )
    writer.write([ONE, failed])
    assert read(tmp_path) == [ONE, failed], "while it is open, and before anything is closed"
    writer.close()


def test_one_that_a_crash_had_generated_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    writer = Rollouts(tmp_path)
    writer.write([ONE])
    again = replace(ONE, batch=4, turns=(Turn(True, "again"),))
    writer.write([again])
    assert read(tmp_path) == [again]
    assert read(tmp_path, pattern="möglich") == [], "nothing of the first is left"
    writer.close()


def test_text_that_has_no_bytes_is_written_out(tmp_path: Path) -> None:
    writer = Rollouts(tmp_path)
    writer.write([replace(ONE, reason="\udcff\x00", turns=(Turn(True, "a\ud800b"), Turn(False, "c")))])
    (found,) = read(tmp_path)
    assert found.reason == "\\udcff\x00"
    assert found.turns == (Turn(True, "a\\ud800b"), Turn(False, "c"))
    writer.close()


def test_what_a_restore_took_back_is_forgotten(tmp_path: Path) -> None:
    writer = Rollouts(tmp_path)
    writer.write([replace(ONE, batch=batch, episode=batch) for batch in range(5)])
    writer.close()
    Rollouts(tmp_path, first_batch=3).close()
    assert [rollout.batch for rollout in read(tmp_path)] == [0, 1, 2]


def test_a_pattern_is_a_regular_expression_over_all_turns(tmp_path: Path) -> None:
    writer = Rollouts(tmp_path)
    writer.write([ONE, replace(ONE, episode=0, turns=(Turn(True, "nothing"),))])
    writer.close()
    for pattern in ("what IS", r'"\d" \+', "ünm", "\U0001f600", "4x"):
        assert read(tmp_path, pattern=pattern) == [ONE], pattern
    with pytest.raises(StoreError, match=r"--grep is '\(', which is no regular expression: missing \)"):
        read(tmp_path, pattern="(")


def test_a_file_that_is_none_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "rollouts.db").write_bytes(b"x" * 4096)
    with pytest.raises(RunDamaged, match=r"rollouts\.db is damaged"):
        RolloutsReader(tmp_path)


numbers = st.none() | st.integers(-2, 2).map(float)
rollouts = st.builds(
    replace,
    st.just(ONE),
    batch=st.integers(0, 3),
    prompt_id=st.sampled_from("ab"),
    status=st.sampled_from(["completed", "failed", "dropped"]),
    reward=numbers,
    advantage=numbers,
    tokens=st.integers(0, 2),
    staleness=st.none() | st.integers(0, 2),
    turns=st.lists(st.builds(Turn, st.booleans(), st.text("xyX", max_size=3)), max_size=3).map(tuple),
)
queries = st.builds(
    Query,
    first_batch=st.none() | st.integers(0, 3),
    last_batch=st.none() | st.integers(0, 3),
    prompt_id=st.none() | st.sampled_from("ab"),
    statuses=st.none() | st.lists(st.sampled_from(["failed", "dropped"]), min_size=1, unique=True).map(tuple),
    pattern=st.none() | st.sampled_from(["x", "xy", "^$", "y.*x"]),
    order=st.sampled_from(ORDERS),
    descending=st.booleans(),
    limit=st.none() | st.integers(1, 4),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(rollouts, max_size=12), queries, st.integers(0, 99))
def test_the_database_finds_what_the_query_says(
    tmp_path_factory: pytest.TempPathFactory, made: list[Rollout], query: Query, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("rollouts")
    each = [replace(rollout, key=(0, number, 0)) for number, rollout in enumerate(made)]
    expected = query.sorted(rollout for rollout in each if query.holds(rollout, query.compiled()))
    writer = Rollouts(folder)
    writer.write(random.Random(seed).sample(each, len(each)))
    with RolloutsReader(folder) as reader:
        assert reader.read(query) == expected
    writer.close()
