"""Which engine a group begins on: the gate first, then the load; and that the bound on staleness holds with any number
of engines, each at a version of its own."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engines.admission import AnyLineage, admit, admit_spread, candidates, route, to_pin
from headrace.engines.pool_state import EngineState, EngineView
from headrace.experience.sample import GroupKey
from headrace.experience.schedule import Schedule
from headrace.weights.version import Lineage, Version

LINE = Lineage(2, {0: 7, 1: 9})
"""Branch 2 forked off branch 1 at version 9, which forked off branch 0 at 7."""
SERVING = EngineState.SERVING

views = st.lists(
    st.builds(
        EngineView,
        index=st.just(0),
        state=st.sampled_from(EngineState),
        version=st.none() | st.builds(Version, st.integers(0, 3), st.integers(0, 14)),
        outstanding=st.integers(0, 5),
    ),
    max_size=6,
).map(lambda all_: [EngineView(index, view.state, view.version, view.outstanding) for index, view in enumerate(all_)])


def serving(*engines: tuple[Version, int]) -> list[EngineView]:
    return [EngineView(index, SERVING, version, load) for index, (version, load) in enumerate(engines)]


@given(views, st.integers(0, 14), st.none() | st.integers(0, 5))
def test_load_decides_only_among_those_for_whom_the_gate_is_open(
    engines: list[EngineView], oldest: int, affinity: int | None
) -> None:
    able = [
        view
        for view in engines
        if view.serves and view.version and LINE.holds(view.version) and view.version.number >= oldest
    ]
    chosen = admit(engines, LINE, lambda number: number >= oldest, affinity)
    assert (chosen is None) == (not able), "whoever may begin somewhere does, however idle the others are"
    spread = admit_spread(engines, LINE, lambda number: number >= oldest)
    if chosen is None:
        assert spread is None
        return
    index, version = chosen
    least = min(view.outstanding for view in able)
    assert engines[index] in able
    assert engines[index].version == version
    assert engines[index].outstanding == least
    if affinity is not None and any(view.index == affinity and view.outstanding == least for view in able):
        assert index == affinity
    assert spread is not None
    assert spread.number == min(view.version.number for view in able if view.version)


@given(views, st.none() | st.integers(0, 14), st.sets(st.integers(0, 5)), st.none() | st.integers(0, 5))
def test_a_request_goes_to_its_home_while_that_may_serve_it_else_to_the_least_loaded(
    engines: list[EngineView], minimum: int | None, excluded: set[int], home: int | None
) -> None:
    able = {
        view.index: view
        for view in engines
        if view.serves
        and view.version
        and LINE.holds(view.version)
        and view.version.number >= (minimum or 0)
        and view.index not in excluded
    }
    index = route(engines, LINE, minimum, excluded=excluded, home=home)
    if not able:
        assert index is None
    elif home in able:
        assert index == home
    else:
        assert index is not None
        assert able[index].outstanding == min(view.outstanding for view in able.values())


@given(views, st.integers(1, 4))
def test_an_evaluation_never_holds_all_engines_unless_there_is_only_one(engines: list[EngineView], count: int) -> None:
    able = [view for view in engines if view.serves and view.version and LINE.holds(view.version)]
    pinned = to_pin(engines, LINE, count)
    assert bool(pinned) == bool(able)
    assert len(pinned) <= max(1, min(count, len(able) - 1))
    newest = max((view.version.number for view in able if view.version), default=None)
    assert all(engines[index].version and engines[index].version.number == newest for index in pinned)


def test_versions_are_compared_within_the_line_and_never_as_tuples() -> None:
    left, kept = Version(1, 10), Version(1, 9)
    assert [view.index for view, _ in candidates(serving((left, 0), (kept, 9)), LINE, lambda _: True)] == [1]
    old, new = Version(2, 3), Version(1, 8)
    assert old > new, "as tuples"
    assert route(serving((old, 0), (new, 9)), LINE, 8) == 1


def test_an_idle_engine_that_cannot_swap_does_not_stop_the_run() -> None:
    engines = serving((Version(0, 0), 0), (Version(0, 3), 10_000))
    assert admit(engines, AnyLineage(), lambda number: number >= 2) == (1, Version(0, 3))


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_the_bound_holds_with_engines_at_different_versions(seed: int, spread: bool) -> None:
    """Random swaps, loads and durations on the real schedule; one engine may never swap. It always comes to its end."""
    rng = random.Random(seed)
    batch, eta, batches = rng.randint(1, 4), rng.randint(0, 3), 12
    schedule = Schedule(batch, eta, batches, "wait", ahead=rng.randint(batch, batch * (eta + 2)))
    versions = [0] * rng.randint(1, 4)
    stuck = rng.randrange(len(versions)) if len(versions) > 1 and rng.random() < 0.5 else None
    loads = [0] * len(versions)
    running: dict[GroupKey, tuple[int, int]] = {}
    began: dict[GroupKey, int] = {}
    reached = 0
    for number in range(10_000):
        if schedule.is_finished:
            break
        engines = serving(*((Version(0, version), load) for version, load in zip(versions, loads, strict=True)))
        event = rng.random()
        if event < 0.4:
            gate = schedule.may_start
            chosen = admit_spread(engines, AnyLineage(), gate) if spread else admit(engines, AnyLineage(), gate)
            if chosen is not None:
                version = chosen if isinstance(chosen[1], int) else chosen[1]
                index = rng.choice([i for i, held in enumerate(versions) if held >= version[1]])
                key = GroupKey(0, number, 0)
                schedule.start(key, version[1])
                running[key] = (version[1], index)
                loads[index] += 1
        elif event < 0.75 and running:
            key = rng.choice(sorted(running))
            began[key], index = running.pop(key)
            loads[index] -= 1
            schedule.ready(key)
        elif event < 0.9:
            index = rng.randrange(len(versions))
            if index != stuck:
                versions[index] = schedule.batch
        for placement in schedule.take():
            stale = placement.batch - began[placement.key]
            assert stale <= eta
            reached = max(reached, stale)
        schedule.check()
        if schedule.is_sealed:
            schedule.step()
    assert schedule.is_finished
    assert reached <= eta
