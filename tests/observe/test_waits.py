import pytest

from headrace.observe.waits import WaitMeter


class Hand:
    """A clock set by hand."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_waits_add_up_by_side_and_thing() -> None:
    clock = Hand()
    meter = WaitMeter(clock)
    with meter.waiting("actor", "rows"):
        clock.time += 2
    clock.time += 5
    with meter.waiting("actor", "rows"):
        clock.time += 0.5
    with meter.waiting("rollout", "the gate"):
        clock.time += 1
    assert meter.totals() == {"actor: rows": 2.5, "rollout: the gate": 1.0}


def test_an_open_wait_counts_up_to_now() -> None:
    clock = Hand()
    meter = WaitMeter(clock)
    with meter.waiting("actor", "rows"):
        clock.time += 3
        assert meter.totals() == {"actor: rows": 3.0}
        clock.time += 1
        assert meter.totals() == {"actor: rows": 4.0}
    clock.time += 9
    assert meter.totals() == {"actor: rows": 4.0}


def test_overlapping_waits_of_one_side_for_one_thing_count_once() -> None:
    clock = Hand()
    meter = WaitMeter(clock)
    first, second = meter.waiting("engine", "weights"), meter.waiting("engine", "weights")
    first.__enter__()
    clock.time += 1
    second.__enter__()
    clock.time += 1
    first.__exit__(None, None, None)
    clock.time += 1
    assert meter.totals() == {"engine: weights": 3.0}
    second.__exit__(None, None, None)
    clock.time += 1
    assert meter.totals() == {"engine: weights": 3.0}


def test_a_wait_that_ends_with_an_error_ends() -> None:
    clock = Hand()
    meter = WaitMeter(clock)

    def give_up() -> None:
        with meter.waiting("actor", "rows"):
            clock.time += 2
            raise TimeoutError

    with pytest.raises(TimeoutError):
        give_up()
    clock.time += 2
    assert meter.totals() == {"actor: rows": 2.0}
