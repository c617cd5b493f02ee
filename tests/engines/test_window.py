"""How many requests a server is given at once."""

from __future__ import annotations

import random

from hypothesis import example, given
from hypothesis import strategies as st

from headrace.engines.servers.window import HIGH, SOFT, ServerLoad, Window

loads = st.builds(ServerLoad, st.floats(0, 1), st.integers(0, 300), st.integers(0, 50))


@example(slots=2, told=[(ServerLoad(0.9, 2, 0), 0), (ServerLoad(0.9, 2, 1), 0)])
@given(st.integers(1, 256), st.lists(st.tuples(loads, st.integers(0, 300)), max_size=40))
def test_it_is_never_shut_and_never_wider_than_the_slots(slots: int, told: list[tuple[ServerLoad, int]]) -> None:
    window = Window.open(slots)
    assert window.size == slots
    for load, in_flight in told:
        after = window.after(load, in_flight)
        assert 1 <= after.size <= slots
        thrown = window.preempted is not None and load.preempted > window.preempted
        if SOFT <= load.kv_use < HIGH and not thrown:
            assert after.size == window.size, "between the two it stays"
        if in_flight < window.size:
            assert after.size <= window.size, "it is not what binds, so it does not grow"
        window = after


def test_it_opens_by_steps_and_shuts_by_a_quarter_of_what_runs() -> None:
    window = Window(slots=256, size=20, preempted=0)
    assert window.after(ServerLoad(0.5, 20, 0), 20).size == 24
    assert window.after(ServerLoad(0.96, 20, 0), 20).size == 15
    assert window.after(ServerLoad(0.96, 10, 0), 20).size == 7, "of 20, half wait there"
    assert window.after(ServerLoad(0.9, 16, 1), 20).size == 13, "it threw one out, and 17.8 such as these would fit"
    assert window.after(ServerLoad(0.96, 20, 1), 21).size == 20, "what was begun before is still there"
    assert Window(64, 64).after(ServerLoad(0.5, 64, 7), 64).size == 64, "those of before are none of ours"


def test_what_it_computes_just_when_many_have_ended_does_not_shut_it_to_so_few() -> None:
    window = Window(slots=32, size=8, preempted=7)
    assert window.after(ServerLoad(0.0, 0, 17), 8).size == 6
    assert window.after(ServerLoad(0.09, 1, 17), 8).size == 6, "11 such would fit"


def test_a_server_that_holds_a_third_of_its_slots_throws_little_out_and_is_kept_busy() -> None:
    """A second a step: each sequence has 10 tokens more, up to 200, and the cache holds 2,100. One that begins has some
    already, as one does that was thrown out."""
    thrown = {}
    for follows in (True, False):
        rng, window, count = random.Random(0), Window.open(64), 0
        held: list[int] = []
        used: list[float] = []
        for _ in range(1_000):
            size = window.size if follows else 64
            held = [length + 10 for length in held if length < 200]
            held += [rng.choice((0, 50, 100)) for _ in range(size - len(held))]
            in_flight = len(held)
            while sum(held) > 2_100:
                held.remove(min(held))
                count += 1
            used.append(sum(held) / 2_100)
            window = window.after(ServerLoad(used[-1], len(held), count), in_flight)
        assert sum(used) / len(used) > 0.75
        thrown[follows] = count
    assert thrown[True] < thrown[False] / 100
