"""Advantages see what their stage reads, and nothing that happens to be there."""

import asyncio
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from table_rows import row as table_row

from headrace.algorithms.estimate import AdvantageEstimator, Compared
from headrace.config.algorithm import AlgorithmConfig
from headrace.experience.leases import Lease, Row
from headrace.roles.columns import token_advantages
from headrace.roles.columns.advantages import AdvantageColumns

READS = ("reward", "keep", "tokens", "loss_mask", "logprobs")


def row(row_id: int, tokens: int, episode: int | None = None, **columns: object) -> Row:
    own = {
        "tokens": np.arange(tokens, dtype=np.int32),
        "loss_mask": np.arange(tokens) > 0,
        "logprobs": np.full(tokens, -1.0, np.float32),
        "reward": float(row_id),
    }
    return table_row(row_id, {**own, **columns}, episode=row_id if episode is None else episode)


def compared(rows: Sequence[Row], reads: Collection[str]) -> Compared:
    return token_advantages.compared(rows, [row.columns for row in rows], reads)


def test_what_is_of_samples_stays_of_samples() -> None:
    """Two samples of one episode: one reward, and each its own end."""
    rows = [
        row(0, 3, truncated=False, last_value=0.0, reward=2.0),
        row(1, 2, truncated=True, last_value=1.5, reward=2.0, episode=0),
    ]
    data = compared(rows, (*READS, "truncated", "last_value"))
    assert data.rewards.tolist() == [2.0]
    assert data.episode.tolist() == [0, 0]
    assert data.truncated is not None
    assert data.truncated.tolist() == [False, True]
    assert data.last_values is not None
    assert data.last_values.tolist() == [0.0, 1.5]
    assert data.ended.tolist() == [False, True, True, False, False]


def test_an_episode_has_the_reward_of_its_last_sample() -> None:
    """Two episodes of two samples with rewards of their own, [0, 1] and [0, 0]: 1 and 0, 1/2 above and below their
    mean."""
    given = [(0, 0.0), (0, 1.0), (1, 0.0), (1, 0.0)]
    rows = [row(place, 2, reward=reward, episode=episode) for place, (episode, reward) in enumerate(given)]
    data = compared(rows, READS)
    assert data.rewards.tolist() == [1.0, 0.0]
    config = AlgorithmConfig(advantage="mean_only")
    columns = AdvantageEstimator(config, max_length=8)(data)
    assert columns["advantages"].tolist() == [0.0, 0.5, 0.0, 0.5, 0.0, -0.5, 0.0, -0.5]


def test_a_column_that_only_some_rows_have_by_now_is_left_out() -> None:
    rows = [row(0, 2, reference=np.zeros(2, np.float32)), row(1, 3)]
    data = compared(rows, READS)
    assert data.reference is None
    assert data.rewards.tolist() == [0.0, 1.0]
    assert data.sample_index.tolist() == [0, 0, 1, 1, 1]


def test_a_column_that_the_stage_reads_is_there_for_all() -> None:
    rows = [row(0, 1, reference=np.array([0.5])), row(1, 2, reference=np.array([1.5, 2.5]))]
    data = compared(rows, (*READS, "reference"))
    assert data.reference is not None
    assert data.reference.tolist() == [0.5, 1.5, 2.5]


def test_the_longest_turn_of_an_episode_is_that_of_its_samples() -> None:
    """Limit 8, buffer 4. Turns of 3, 3 and 2 tokens pay nothing; one of 6, in the first of two samples, 2/4."""
    spans = [[(0, 0, 1, 4), (0, 0, 5, 8)], [(0, 0, 1, 3)], [(0, 0, 1, 4), (0, 1, 4, 7)], [(0, 0, 1, 2)]]
    rows = [
        table_row(place, {"reward": 1.0}, episode=place // 2, length=9, spans=each) for place, each in enumerate(spans)
    ]
    config = AlgorithmConfig(advantage="mean_only", shaping={"overlong_buffer": 4})
    nobody: Any = None
    columns = AdvantageColumns(SimpleNamespace(), AdvantageEstimator(config, max_length=8), nobody, nobody)  # type: ignore[arg-type]
    filled = asyncio.run(columns.compute(Lease(0, "advantages", rows, 0.0)))
    found = [filled.columns["advantages"][row.row_id].value for row in rows]
    assert found == [0.25, 0.25, -0.25, -0.25]
