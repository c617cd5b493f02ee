"""What would train on other rows or steps than those meant is refused, also by a Python that runs without asserts."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.training.rank import TrainerRank
from headrace.training.rows.read_ahead import ReadAhead


def test_rows_that_were_read_for_another_pass_are_refused() -> None:
    ahead: ReadAhead[int] = ReadAhead(list)  # type: ignore[arg-type]
    ahead.read([[1, 2], [3]])
    assert ahead([1, 2]) == [1, 2]
    with pytest.raises(RuntimeError, match=r"^1 rows were read ahead for another pass than this one of 2$"):
        ahead([3, 4])


def test_steps_that_are_not_remembered_are_not_recalled() -> None:
    rank: Any = object.__new__(TrainerRank)
    rank._steps, rank._remembered = 7, 4
    with pytest.raises(RuntimeError, match=r"^5 steps were not remembered: there are \[7, 4\]$"):
        rank.recall(5)
