"""Whose time it is that passes while a program runs."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sandbox.meters import OwnTime, TimeMeter
from headrace.sandbox.tree import Thread

MS = 1_000_000
"""Nanoseconds."""


def thread(*, runs: bool = True, computed_ms: float = 0, waited_ms: float = 0) -> Thread:
    return Thread(runs, int(computed_ms * MS), int(waited_ms * MS))


def spent(*looks: tuple[float, dict[int, Thread]], begins: dict[int, Thread] | None = None) -> float:
    own = OwnTime(begins or {})
    for passed_s, threads in looks:
        own.pass_to(passed_s, threads)
    return own.spent_s


def test_what_one_thread_waits_for_a_processor_is_not_its_own() -> None:
    """Of 1 s it waited 0.7 s; of another second 0.1 s."""
    first, second = thread(computed_ms=300, waited_ms=700), thread(computed_ms=1200, waited_ms=800)
    assert spent((1.0, {7: first})) == pytest.approx(0.3)
    assert spent((1.0, {7: first}), (2.0, {7: second})) == pytest.approx(0.3 + 0.9)


def test_sleeping_is_its_own_time() -> None:
    assert spent((1.0, {7: thread(runs=False, computed_ms=1)})) == 1.0
    assert spent((1.0, {})) == 1.0


def test_what_was_waited_before_it_began_does_not_count() -> None:
    before = {7: thread(computed_ms=100, waited_ms=500)}
    assert spent((1.0, {7: thread(computed_ms=1000, waited_ms=600)}), begins=before) == pytest.approx(0.9)


def test_the_longest_wait_of_several_threads_counts() -> None:
    """The main one sleeps until the other is done."""
    main, worker = thread(runs=False, waited_ms=1), thread(computed_ms=400, waited_ms=600)
    assert spent((1.0, {7: main, 8: worker})) == pytest.approx(0.4)


def test_threads_that_want_a_processor_together_may_wait_for_each_other() -> None:
    one, other = thread(computed_ms=500, waited_ms=500), thread(computed_ms=500, waited_ms=500)
    assert spent((1.0, {7: one, 8: other})) == 1.0


def test_a_wait_that_is_not_over_counts_and_counts_once() -> None:
    """The kernel tells of a wait when it is over: of 0.5 s in the last of three looks."""
    looks = [thread(computed_ms=100), thread(computed_ms=100), thread(computed_ms=200, waited_ms=500)]
    assert spent(*((0.25 * i, {7: one}) for i, one in enumerate(looks, 1)), begins={7: looks[0]}) == pytest.approx(0.0)
    asleep = [thread(runs=False, computed_ms=100)] * 3
    assert spent(*((0.25 * i, {7: one}) for i, one in enumerate(asleep, 1)), begins={7: asleep[0]}) == 0.75


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0.001, 1.0),
            st.dictionaries(
                st.integers(1, 4),
                st.builds(Thread, st.booleans(), st.integers(0, 10**10), st.integers(0, 10**10)),
                max_size=4,
            ),
        ),
        max_size=8,
    )
)
def test_own_time_never_shrinks_and_is_no_more_than_passes(looks: list[tuple[float, dict[int, Thread]]]) -> None:
    """Whatever the kernel says."""
    own, passed_s, before = OwnTime({}), 0.0, 0.0
    for elapsed_s, threads in looks:
        passed_s += elapsed_s
        own.pass_to(passed_s, threads)
        assert before <= own.spent_s <= before + elapsed_s + 1e-9
        if sum(one.runs for one in threads.values()) > 1:
            assert own.spent_s == pytest.approx(before + elapsed_s)
        before = own.spent_s


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What the kernel says, on paper."""
    told: dict[str, object] = {"threads": {}, "computed_s": 0.0}
    monkeypatch.setattr("headrace.sandbox.meters._tree", dict)
    monkeypatch.setattr("headrace.sandbox.meters.threads_of", lambda tree: told["threads"])
    monkeypatch.setattr("headrace.sandbox.meters.computed_s_by", lambda tree: told["computed_s"])
    return told


def test_time_before_the_program_begins_is_nobody_s(paper: dict[str, object]) -> None:
    meter = TimeMeter(1.0)
    assert meter.look(100.0) == (False, 0.02)
    meter.begin(100.0)
    assert not meter.look(100.9)[0]
    assert meter.spent_s == pytest.approx(0.9)
    assert meter.look(101.1)[0]


def test_a_meter_is_looked_at_when_its_time_is_over(paper: dict[str, object]) -> None:
    """A quarter of what passed, from 20 to 100 ms; and in time for the end, which is at 1 s."""
    meter = TimeMeter(1.0)
    meter.begin(0.0)
    pauses = [meter.look(moment)[1] for moment in (0.02, 0.2, 0.8, 0.96)]
    assert pauses == pytest.approx([0.02, 0.05, 0.1, 0.04])
    assert meter.look(0.97) == (False, pytest.approx(0.02)), "not yet: it is due at 1 s"
    assert meter.look(1.0)[0]


def test_processor_time_counts_once_as_much_time_has_passed(paper: dict[str, object]) -> None:
    """Two threads that computed 1.8 s in 0.9 s are not over; nor does waiting help who computed all of it."""
    meter = TimeMeter(1.0)
    paper["computed_s"] = 5.0
    meter.begin(0.0)
    paper.update(computed_s=6.8, threads={7: thread(computed_ms=900)})
    assert not meter.look(0.9)[0]
    paper["threads"] = {7: thread(computed_ms=900, waited_ms=5000)}
    assert meter.look(1.1)[0]
