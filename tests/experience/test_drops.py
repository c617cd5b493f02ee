"""When groups that are dropped are too many: numbers by hand."""

from __future__ import annotations

import pytest

from headrace.experience.drops import HANDED_BACK, SURPLUS, Drops, NothingToTrain


def faults(drops: Drops, count: int) -> None:
    for _ in range(count):
        drops.judged("filter_error", "KeyError: 'x'")
        drops.add("filter_error", "KeyError: 'x'")


def test_a_batchs_worth_of_one_fault_is_enough_only_while_nothing_else_has_come() -> None:
    """A batch has 4 prompts, and fewer than 8 may come to one fault by chance."""
    drops = Drops(None, lambda judged, place: "")
    faults(drops, 7)
    drops.check(0, 0, 4)
    faults(drops, 1)
    with pytest.raises(NothingToTrain, match=r"all of the first 8 groups were dropped .*KeyError"):
        drops.check(0, 0, 4)
    drops.kept()
    drops.check(0, 1, 4)


def test_a_limit_counts_what_a_batch_dropped_but_for_surplus() -> None:
    drops = Drops(3, lambda judged, place: "")
    for _ in range(9):
        drops.add(f"{HANDED_BACK}{SURPLUS}", None)
    for _ in range(2):
        drops.add("constant_reward", None)
    drops.check(5, 1, 4)
    drops.add("constant_reward", None)
    with pytest.raises(NothingToTrain, match=r"3 groups were dropped while batch 5 .*constant_reward 3.*has 1 of 4"):
        drops.check(5, 1, 4)
    drops.clear()
    drops.check(6, 0, 4)
