from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.config import ConfigError
from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus
from headrace.rollout.filters import drop_reason, load_filters, zero_spread

KEY = GroupKey(0, 0, 0)


def group(*rewards: float | None) -> Group:
    """None is a failed sample."""
    one = np.ones(1)
    samples = []
    for episode, reward in enumerate(rewards):
        status, failure = (SampleStatus.FAILED, "engine: x") if reward is None else (SampleStatus.COMPLETED, None)
        samples.append(Sample(KEY, episode, 0, one, one, one, one, one, status, reward, failure))
    return Group(KEY, "p", 0, 2, tuple(samples))


def test_zero_spread_drops_groups_whose_rewards_are_equal() -> None:
    assert zero_spread(group(1.0, 1.0, 1.0)) == "zero_spread"
    assert zero_spread(group(0.0, 0.0)) == "zero_spread"
    assert zero_spread(group(1.0, 0.0)) is None


def test_zero_spread_looks_at_trainable_samples_only() -> None:
    assert zero_spread(group(1.0, None, 1.0)) == "zero_spread"
    assert zero_spread(group(None, None)) == "zero_spread"


def test_a_user_filter_keeps_or_drops_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("def long_enough(group): return len(group.samples) > 2")
    filters = load_filters(("zero_spread", f"{tmp_path}/f.py:long_enough"))
    assert drop_reason(filters, group(0.0, 1.0, 0.0)) is None
    assert drop_reason(filters, group(0.0, 1.0)) == "long_enough"
    assert drop_reason(filters, group(0.0, 0.0)) == "zero_spread"


def test_a_filter_that_raises_drops_the_group(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "f.py").write_text("def broken(group): return 1 / 0")
    assert drop_reason(load_filters((f"{tmp_path}/f.py:broken",)), group(0.0, 1.0)) == "filter_error"
    assert "ZeroDivisionError" in caplog.text


def test_an_unknown_filter_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.filters has 'zero'; write zero_spread or path\.py:function"):
        load_filters(("zero",))
