from __future__ import annotations

import pytest

from headrace.config.trainer import LRScheduleConfig
from headrace.training.optimizer.lr_schedule import learning_rate


def rates(total: int, **settings: object) -> list[float]:
    return [learning_rate(step, total, 8.0, LRScheduleConfig(**settings)) for step in range(total)]  # type: ignore[arg-type]


def test_constant() -> None:
    assert rates(3) == [8, 8, 8]
    assert rates(5, warmup_steps=3) == [2, 4, 6, 8, 8]


def test_linear() -> None:
    assert rates(5, kind="linear") == [8, 6, 4, 2, 0]
    assert rates(6, kind="linear", warmup_steps=1, min_ratio=0.5) == pytest.approx([4, 8, 7, 6, 5, 4])


def test_cosine() -> None:
    # cos(0), cos(pi/3), cos(2 pi/3), cos(pi) = 1, 1/2, -1/2, -1
    assert rates(4, kind="cosine") == pytest.approx([8, 6, 2, 0])
    assert rates(5, kind="cosine", warmup_steps=1, min_ratio=0.25) == pytest.approx([4, 8, 6.5, 3.5, 2])


def test_steps_past_the_end_and_runs_shorter_than_the_warm_up() -> None:
    assert learning_rate(9, 5, 8.0, LRScheduleConfig(kind="linear", min_ratio=0.25)) == 2
    assert rates(1, kind="cosine") == [8]
    assert rates(2, kind="linear", warmup_steps=7) == [1, 2]
