"""Mixtures and curricula: shares hold in every window, and whatever the weights and the order are, every epoch of a
source draws each of its rows exactly once."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import ConfigError
from headrace.experience.prompts.dataset import PromptOrder
from headrace.experience.prompts.mixture import Mixture
from headrace.experience.prompts.prompt_order import FixedOrder, MixedOrder, PassRateOrder, RowOrder

WEIGHTS = st.lists(
    st.one_of(st.integers(1, 1000), st.floats(0.001, 100, allow_nan=False).map(lambda value: round(value, 3))),
    min_size=1,
    max_size=6,
)


def test_two_to_one_by_hand() -> None:
    """Draws of weight 2/3 are due at 0.75, 2.25, 3.75, ...; of 1/3 at 1.5, 4.5, ..."""
    mixture = Mixture([2, 1])
    assert [mixture.draw(place) for place in range(6)] == [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (0, 3)]


def test_equal_weights_take_turns_and_decimals_are_exact() -> None:
    assert [Mixture([0.1, 0.1, 0.1]).draw(place)[0] for place in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    counts = Counter(Mixture([0.7, 0.2, 0.1]).draw(place)[0] for place in range(1000))
    assert counts == {0: 700, 1: 200, 2: 100}


@settings(deadline=None, max_examples=60)
@given(weights=WEIGHTS, start=st.integers(0, 5000))
def test_every_draw_of_every_source_comes_once_and_in_its_order(weights: list[float], start: int) -> None:
    mixture = Mixture(weights)
    seen: dict[int, int] = {}
    for place in range(start, start + 200):
        source, n = mixture.draw(place)
        assert n == seen.get(source, n), "the next draw of its source"
        seen[source] = n + 1
    if len(seen) == len(weights):
        assert sum(seen.values()) == start + 200, "a draw of every place before, too"


@settings(deadline=None, max_examples=60)
@given(weights=WEIGHTS)
def test_from_the_start_no_draw_is_left_out(weights: list[float]) -> None:
    mixture = Mixture(weights)
    draws = [mixture.draw(place) for place in range(300)]
    for source in range(len(weights)):
        own = [n for drawn, n in draws if drawn == source]
        assert own == list(range(len(own)))


@settings(deadline=None, max_examples=60)
@given(weights=WEIGHTS, start=st.integers(0, 10**6), size=st.integers(1, 100))
def test_shares_hold_in_every_window(weights: list[float], start: int, size: int) -> None:
    """B*w, to within 1 + w*(k - 2): see `experience/prompts/mixture.py`."""
    mixture = Mixture(weights)
    counts = Counter(mixture.draw(place)[0] for place in range(start, start + size))
    for source, weight in enumerate(weights):
        share = weight / sum(weights)
        assert abs(counts[source] - size * share) <= 1 + share * max(len(weights) - 2, 0) + 1e-6


def _orders(kind: str, sizes: list[int], seed: int, shuffle: bool) -> list[RowOrder]:
    orders: list[RowOrder] = []
    for number, size in enumerate(sizes):
        plain = PromptOrder(size, seed, shuffle, source=number)
        levels = np.arange(size, dtype=np.float64) % 3
        if kind == "pass_rate":
            orders.append(PassRateOrder(plain, 0.5))
        else:
            orders.append(FixedOrder(plain, levels if kind == "column" else None, descending=seed % 2 == 1))
    return orders


KINDS = st.sampled_from(["shuffled", "column", "pass_rate"])


@settings(deadline=None, max_examples=80)
@given(
    kind=KINDS,
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    seed=st.integers(0, 2**32 - 1),
    shuffle=st.booleans(),
    data=st.data(),
)
def test_every_epoch_of_a_source_draws_each_of_its_rows_once(
    kind: str, sizes: list[int], seed: int, shuffle: bool, data: st.DataObject
) -> None:
    """Whatever the weights are, whatever was learnt meanwhile, and where the run was resumed in the midst."""
    count = len(sizes)
    weights = data.draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    rates = st.lists(st.tuples(st.integers(0, sum(sizes) - 1), st.sampled_from([0.0, 0.25, 0.5, 1.0])), max_size=4)
    order = MixedOrder(_orders(kind, sizes, seed, shuffle), sizes, weights)
    learnt: list[tuple[int, float]] = []
    drawn: list[tuple[int, int, int]] = []
    for place in range(3 * sum(sizes)):
        epoch, position = divmod(place, sum(sizes))
        if data.draw(st.integers(0, 9)) == 0:  # killed, and resumed from the ledger
            order = MixedOrder(_orders(kind, sizes, seed, shuffle), sizes, weights)
            order.restore(drawn)
            order.learn(learnt)
        news = data.draw(rates)
        order.learn(news)
        learnt += news
        drawn.append((epoch, position, order.row(epoch, position)))
    starts = np.cumsum([0, *sizes])
    for source, size in enumerate(sizes):
        own = [row - starts[source] for _, _, row in drawn if starts[source] <= row < starts[source + 1]]
        for begin in range(0, len(own), size):
            epoch_rows = own[begin : begin + size]
            assert len(set(epoch_rows)) == len(epoch_rows)
            assert set(epoch_rows) <= set(range(size))


@settings(deadline=None, max_examples=40)
@given(sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4), seed=st.integers(0, 2**32 - 1))
def test_without_weights_an_epoch_has_every_row_of_every_source_once(sizes: list[int], seed: int) -> None:
    order = MixedOrder(_orders("shuffled", sizes, seed, True), sizes, sizes)
    for epoch in (0, 1, 17):
        assert sorted(order.row(epoch, position) for position in range(sum(sizes))) == list(range(sum(sizes)))


def test_one_source_is_drawn_as_it_always_was() -> None:
    plain = PromptOrder(9, seed=5, shuffle=True)
    order = MixedOrder([FixedOrder(plain, None, descending=False)], [9], [3.5])
    for epoch in range(3):
        assert [order.row(epoch, position) for position in range(9)] == [plain.row(epoch, p) for p in range(9)]
    with pytest.raises(IndexError, match="position 9 of an epoch of 9"):
        order.row(0, 9)


def test_sources_of_one_size_are_not_shuffled_alike() -> None:
    first, second = (PromptOrder(20, seed=5, shuffle=True, source=source).rows(0).tolist() for source in (0, 1))
    assert first != second


def test_a_column_orders_each_epoch_and_equal_rows_are_shuffled() -> None:
    levels = np.array([3.0, 1.0, 2.0, 1.0, 1.0, 3.0])
    for descending in (False, True):
        order = FixedOrder(PromptOrder(6, seed=2, shuffle=True), levels, descending=descending)
        epochs = [[order.row(epoch, position) for position in range(6)] for epoch in range(4)]
        for rows in epochs:
            assert [levels[row] for row in rows] == sorted(levels, reverse=descending)
        assert len({tuple(rows) for rows in epochs}) > 1
    unshuffled = FixedOrder(PromptOrder(6, seed=2, shuffle=False), levels, descending=False)
    assert [unshuffled.row(0, position) for position in range(6)] == [1, 3, 4, 2, 0, 5]


def test_pass_rates_untried_rows_first_then_the_nearest_to_the_target() -> None:
    order = PassRateOrder(PromptOrder(5, seed=0, shuffle=False), 0.5)
    assert [order.row(0, position) for position in range(5)] == [0, 1, 2, 3, 4]
    for row, rate in ((0, 1.0), (1, 0.5), (2, 0.125), (4, 0.75)):
        order.learn(row, rate)
    assert [order.row(1, position) for position in range(3)] == [1, 4, 2], "at 0, 0.25 and 0.375 from it; 0 is at 0.5"
    order.learn(0, 0.5)
    order.learn(1, 0.0)
    assert [order.row(1, position) for position in (3, 4)] == [0, 3], "1 is drawn; 3 has no rate, as if it never ended"


def test_rows_are_asked_for_in_turn_where_history_counts() -> None:
    order = PassRateOrder(PromptOrder(5, seed=0, shuffle=False), 0.5)
    with pytest.raises(ValueError, match="position 1 of epoch 0 is not the next"):
        order.row(0, 1)


def test_a_ledger_of_other_data_is_told() -> None:
    order = MixedOrder(_orders("pass_rate", [3, 3], 0, True), [3, 3], [3, 3])
    with pytest.raises(ConfigError, match=r"row 7 at position 0 of epoch 0.*restore them, or begin again with --fresh"):
        order.restore([(0, 0, 7)])
