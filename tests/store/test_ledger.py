"""States of attempts, one transition at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from store_helpers import create, finish, issue, train

from headrace.store import AttemptRow, Counts, IllegalTransition, LawBroken, RunStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    store = create(tmp_path / "run")
    yield store
    store.close()


def test_counts_by_hand(store: RunStore) -> None:
    keys = [issue(store, position) for position in range(6)]
    offsets = [finish(store, key) for key in keys[:4]]
    store.ledger.train(keys[:2], batch=0)
    store.ledger.drop(keys[2], "zero_spread")
    store.ledger.drop(keys[4], "zero_spread")
    again = issue(store, 2, attempt=1)
    store.ledger.drop(again, "exhausted")

    counts = store.ledger.counts()
    assert counts == Counts(7, running=1, ready=1, trained=2, dropped={"zero_spread": 2, "exhausted": 1})
    assert counts.law_holds
    assert store.ledger.attempts("ready") == [AttemptRow((0, 3, 0), "p3", 0, 2, offsets[3], None, None)]
    assert store.ledger.attempts("trained")[0] == AttemptRow((0, 0, 0), "p0", 0, 2, offsets[0], 0, None)
    assert store.ledger.attempts("running") == [AttemptRow((0, 5, 0), "p5", 0, 2, None, None, None)]
    assert [row.reason for row in store.ledger.attempts("dropped")] == ["zero_spread", "zero_spread", "exhausted"]


def test_attempts_come_in_issue_order(store: RunStore) -> None:
    for position in (5, 1, 3):
        issue(store, position)
    assert [row.key for row in store.ledger.attempts("running")] == [(0, 5, 0), (0, 1, 0), (0, 3, 0)]


def test_frontier_is_the_last_prompt_issued_first_time(store: RunStore) -> None:
    assert store.ledger.frontier() is None
    issue(store, 8)
    store.ledger.issue((1, 0, 0), prompt_id="p", start_version=0, deadline=0)
    store.ledger.drop((0, 8, 0), "failed")
    issue(store, 8, attempt=1)
    assert store.ledger.frontier() == (1, 0)


def test_latest_attempt(store: RunStore) -> None:
    assert store.ledger.latest_attempt(0, 3) is None
    store.ledger.drop(issue(store, 3), "failed")
    issue(store, 3, attempt=1)
    assert store.ledger.latest_attempt(0, 3) == 1


def test_reissue_changes_version_and_deadline_and_counts_nothing(store: RunStore) -> None:
    key = issue(store, 0)
    store.ledger.reissue(key, start_version=7, deadline=9)
    (row,) = store.ledger.attempts("running")
    assert (row.start_version, row.deadline) == (7, 9)
    assert store.ledger.counts().issued == 1


Action = Callable[[RunStore, tuple[int, int, int]], object]
ACTIONS: dict[str, Action] = {
    "reissue": lambda store, key: store.ledger.reissue(key, start_version=1, deadline=1),
    "ready": finish,
    "train": lambda store, key: store.ledger.train([key], batch=1),
    "drop": lambda store, key: store.ledger.drop(key, "failed"),
}
ALLOWED = {
    "unknown": set[str](),
    "running": {"reissue", "ready", "drop"},
    "ready": {"train", "drop"},
    "trained": set[str](),
    "dropped": set[str](),
}
FORBIDDEN = [(state, action) for state, allowed in ALLOWED.items() for action in ACTIONS if action not in allowed]


@pytest.mark.parametrize(("state", "action"), FORBIDDEN)
def test_forbidden_transitions_raise_and_change_nothing(store: RunStore, state: str, action: str) -> None:
    key = (0, 0, 0)
    if state != "unknown":
        issue(store, 0)
    if state in ("ready", "trained"):
        finish(store, key)
    if state == "trained":
        store.ledger.train([key], batch=0)
    if state == "dropped":
        store.ledger.drop(key, "failed")
    before = store.ledger.counts()
    with pytest.raises(IllegalTransition, match=rf"0/0#0: it is {state}, and must be"):
        ACTIONS[action](store, key)
    assert store.ledger.counts() == before


def test_one_prompt_is_never_trained_by_two_attempts(store: RunStore) -> None:
    train(store, 0, batch=0)
    with pytest.raises(IllegalTransition, match="attempt 0 at that prompt is trained"):
        issue(store, 0, attempt=1)


def test_a_second_attempt_waits_for_the_first_to_be_dropped(store: RunStore) -> None:
    issue(store, 0)
    for attempt in (0, 1):
        with pytest.raises(IllegalTransition, match="attempt 0 at that prompt is running"):
            issue(store, 0, attempt=attempt)
    assert store.ledger.counts().issued == 1


def test_a_batch_is_trained_whole_or_not_at_all(store: RunStore) -> None:
    keys = [issue(store, position) for position in range(2)]
    finish(store, keys[0])
    with pytest.raises(IllegalTransition, match="0/1#0: it is running"):
        store.ledger.train(keys, batch=0)
    assert store.ledger.counts().trained == 0


def test_ready_needs_a_synced_record(store: RunStore) -> None:
    key = issue(store, 0)
    offset = store.writer.append(key, b"group")
    with pytest.raises(IllegalTransition, match=r"not synced; call sync"):
        store.ledger.ready(store.writer.receipt(key, offset))


def test_only_what_was_last_issued_makes_an_attempt_ready(store: RunStore) -> None:
    key = issue(store, 0)
    assert store.ledger.reissue(key, start_version=1, deadline=3) == 1
    places = [store.writer.append(key, b"group", issue=number) for number in (0, 1)]
    store.writer.sync()
    with pytest.raises(IllegalTransition, match="0/0#0: it is running, and must be running, and issue 0 of it given"):
        store.ledger.ready(store.writer.receipt(key, places[0]))
    store.ledger.ready(store.writer.receipt(key, places[1], issue=1))
    (row,) = store.ledger.attempts("ready")
    assert (row.issue, row.start_version, row.deadline, row.offset) == (1, 1, 3, places[1])


def test_a_running_attempt_may_be_due_at_another_batch(store: RunStore) -> None:
    key = issue(store, 0)
    store.ledger.due(key, deadline=7)
    assert [row.deadline for row in store.ledger.attempts("running")] == [7]
    finish(store, key)
    with pytest.raises(IllegalTransition, match="0/0#0: it is ready, and must be running"):
        store.ledger.due(key, deadline=8)


def test_what_was_trained_since_a_batch_comes_batch_after_batch(store: RunStore) -> None:
    keys = [issue(store, position) for position in range(4)]
    for batch, key in zip((2, 0, 1, 1), keys, strict=True):
        finish(store, key)
        store.ledger.train([key], batch=batch)
    assert [(row.key, row.batch) for row in store.ledger.trained_since(1)] == [
        (keys[2], 1),
        (keys[3], 1),
        (keys[0], 2),
    ]


def test_a_transaction_of_several_writes_is_undone_together(store: RunStore) -> None:
    with pytest.raises(KeyError), store.transaction():  # noqa: PT012
        key = issue(store, 0)
        store.metrics.write(0, 1, 5.0, {"loss": 1.0})
        with pytest.raises(IllegalTransition):
            store.ledger.train([key], batch=0)
        assert store.ledger.counts().running == 1
        raise KeyError
    assert store.ledger.counts() == Counts(0, 0, 0, 0, {})
    assert store.metrics.read("batch") == []


def test_a_part_that_fails_is_undone_alone(store: RunStore) -> None:
    keys = [issue(store, position) for position in range(3)]
    finish(store, keys[0])
    with store.transaction():
        with pytest.raises(IllegalTransition):
            store.ledger.train(keys[:2], batch=0)
        store.ledger.drop(keys[2], "failed")
    assert store.ledger.counts() == Counts(3, running=1, ready=1, trained=0, dropped={"failed": 1})


def test_a_lost_row_breaks_the_law(store: RunStore) -> None:
    for position in range(3):
        issue(store, position)
    with sqlite3.connect(store.path / "run.db") as other:
        other.execute("DELETE FROM attempts WHERE position = 1")
    other.close()
    counts = store.ledger.counts()
    assert not counts.law_holds
    with pytest.raises(LawBroken, match=r"3 attempts were issued but 2 are accounted for \(2 running \+ 0 ready"):
        counts.check()
    with pytest.raises(LawBroken):
        store.checkpoints.commit(
            store.checkpoints.prepare(1, lambda folder: (folder / "x").touch()), branch=0, number=1, state={}
        )
