"""The first position whose value is small enough, told as by looking at all."""

import random

import pytest

from headrace.experience.first_fit import FirstFit, Found


def first(plain: dict[int, int], start: int, limit: float) -> Found | None:
    return min((Found(at, value) for at, value in plain.items() if at >= start and value <= limit), default=None)


@pytest.mark.parametrize("seed", range(60))
def test_the_first_that_fits(seed: int) -> None:
    """Dense and sparse positions, as many as three levels of the tree hold; few and many values."""
    chance = random.Random(seed)
    line, plain = FirstFit(), dict[int, int]()
    most, values = chance.choice((20, 200, 5_000, 100_000)), chance.choice((1, 4, 1_000))
    leaves = chance.choice((0.2, 0.45, 0.55))
    for _ in range(400):
        if plain and chance.random() < leaves:
            at = chance.choice(sorted(plain))
            assert line.remove(at) == plain.pop(at)
        else:
            at = chance.randrange(most)
            if at not in plain:
                plain[at] = chance.randrange(values)
                line.add(at, plain[at])
        start, limit = chance.choice((0, 0, chance.randrange(most), at, at + 1)), chance.randrange(-1, values)
        assert line.first(start, limit) == first(plain, start, limit)
        assert line.first(start) == first(plain, start, values)
        assert bool(line) == bool(plain)


def test_a_line_that_moves_on_keeps_nothing_of_what_has_left() -> None:
    line = FirstFit()
    for at in range(5_000):
        line.add(at, at % 7)
        if at >= 40:
            line.remove(at - 40)
    assert line.first(0, 0) == Found(4963, 0)
    assert sum(map(len, line._levels)) < 8
