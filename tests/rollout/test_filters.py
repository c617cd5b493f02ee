from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from headrace.config import ConfigError
from headrace.config.rollout import RolloutConfig
from headrace.experience.header import header_of
from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus
from headrace.rollout.filters import Filter, drop_reason, load_filters, repeated_share, zero_spread

KEY = GroupKey(0, 0, 0)


def group(*rewards: float | None) -> Group:
    """None is a failed sample."""
    one = np.ones(1)
    samples = []
    for episode, reward in enumerate(rewards):
        status, failure = (SampleStatus.FAILED, "engine: x") if reward is None else (SampleStatus.COMPLETED, None)
        samples.append(Sample(KEY, episode, 0, one, one, one, one, one, status, reward, failure))
    return Group(KEY, "p", 0, 2, tuple(samples))


def judge(filters: Sequence[Filter], group: Group, batch: int, failed: Callable[[str], None] = print) -> str | None:
    return drop_reason(filters, header_of(group), lambda: group, batch, failed)


def test_zero_spread_drops_groups_whose_rewards_are_equal() -> None:
    assert judge((zero_spread,), group(1.0, 1.0, 1.0), 0) == "zero_spread"
    assert judge((zero_spread,), group(0.0, 0.0), 0) == "zero_spread"
    assert judge((zero_spread,), group(1.0, 0.0), 0) is None


def test_zero_spread_looks_at_trainable_samples_only() -> None:
    assert judge((zero_spread,), group(1.0, None, 1.0), 0) == "zero_spread"
    assert judge((zero_spread,), group(None, None), 0) == "zero_spread"


def histories(*rewards: Sequence[float]) -> Group:
    """Of each episode those of its samples."""
    one = np.ones(1)
    given = [(episode, index, reward) for episode, each in enumerate(rewards) for index, reward in enumerate(each)]
    done = SampleStatus.COMPLETED
    samples = (Sample(KEY, episode, index, *[one] * 5, done, reward) for episode, index, reward in given)
    return Group(KEY, "p", 0, 2, tuple(samples))


def test_an_episode_of_several_samples_has_the_reward_of_its_last() -> None:
    assert judge((zero_spread,), histories([0.0, 1.0], [1.0]), 0) == "zero_spread", "their advantages are 0"
    assert judge((zero_spread,), histories([1.0, 0.0], [1.0]), 0) is None
    entry = {"type": "reward_range", "low": 0.5}
    assert reason(entry, histories([0.0] * 4, [1.0])) is None, "the mean of 0 and 1"


def test_a_user_filter_keeps_or_drops_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("def long_enough(group): return len(group.samples) > 2")
    filters = load_filters(("zero_spread", f"{tmp_path}/f.py:long_enough"))
    assert judge(filters, group(0.0, 1.0, 0.0), 0) is None
    assert judge(filters, group(0.0, 1.0), 0) == "long_enough"
    assert judge(filters, group(0.0, 0.0), 0) == "zero_spread"


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("exit(3)", "SystemExit: 3"),
        ("panic(type('Panic', (BaseException,), {}))", "Panic: 7"),
    ],
)
def test_a_filter_that_raises_drops_the_group_and_says_why(tmp_path: Path, does: str, words: str) -> None:
    (tmp_path / "f.py").write_text(f"def panic(kind): raise kind(7)\ndef broken(group): return {does}")
    told: list[str] = []
    filters = load_filters((f"{tmp_path}/f.py:broken",))
    assert judge(filters, group(0.0, 1.0), 0, told.append) == "filter_error"
    assert words in told[0]


@pytest.mark.parametrize(("returns", "kept"), [("True", True), ("numpy.bool_(0)", False), ("numpy.array(True)", True)])
def test_a_filter_may_return_a_bool_of_any_kind(tmp_path: Path, returns: str, kept: bool) -> None:
    (tmp_path / "f.py").write_text(f"import numpy\ndef keep(group): return {returns}")
    filters = load_filters((f"{tmp_path}/f.py:keep",))
    assert judge(filters, group(0.0, 1.0), 0) == (None if kept else "keep")


@pytest.mark.parametrize(
    ("returns", "shown"), [("'yes'", "'yes' (str)"), ("None", "None (NoneType)"), ("1", "1 (int)"), ("[]", "[] (list)")]
)
def test_a_filter_that_returns_anything_else_is_a_fault(tmp_path: Path, returns: str, shown: str) -> None:
    (tmp_path / "f.py").write_text(f"def keep(group): return {returns}")
    told: list[str] = []
    filters = load_filters((f"{tmp_path}/f.py:keep",))
    assert judge(filters, group(0.0, 1.0), 0, told.append) == "filter_error"
    assert told == [
        f"the filter keep returned {shown}; return True to keep the group, or False to drop it",
    ]


def test_a_filter_that_would_have_to_be_awaited_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("async def keep(group): return False")
    with pytest.raises(ConfigError, match=r"f\.py:keep', which is async, and is called without waiting; write a plain"):
        load_filters((f"{tmp_path}/f.py:keep",))


def of_tokens(*responses: list[int], versions: list[int] | None = None) -> Group:
    """One sample for each response, behind a prompt of two tokens; `versions` are those of every response."""
    samples = []
    for episode, tokens in enumerate(responses):
        mask = np.array([False] * 2 + [True] * len(tokens))
        stamped = np.array([-1, -1, *(versions or [0] * len(tokens))], np.int32)
        ids = np.array([9, 9, *tokens], np.int32)
        zeros = np.zeros(len(ids), np.float32)
        samples.append(Sample(KEY, episode, 0, ids, mask, zeros, stamped, stamped, SampleStatus.COMPLETED, 1.0))
    return Group(KEY, "p", 0, 2, tuple(samples))


def reason(entry: dict[str, Any], judged: Group, batch: int = 0) -> str | None:
    """What the filter that stands so in a config says, when this batch is composed."""
    config = RolloutConfig.model_validate({"filters": [entry]})
    return judge(load_filters(config.filters), judged, batch)


@pytest.mark.parametrize(
    ("rewards", "dropped"),
    [((0.0, 0.0), True), ((0.0, 0.2), False), ((0.5, 1.0), False), ((0.9, 1.0), True), ((None, None), True),
     ((1.0, None, 0.0), False)],
)  # fmt: skip
def test_reward_range_looks_at_the_mean(rewards: tuple[float | None, ...], dropped: bool) -> None:
    entry = {"type": "reward_range", "low": 0.1, "high": 0.9}
    assert reason(entry, group(*rewards)) == ("reward_range" if dropped else None)


def test_length_counts_what_the_policy_chose() -> None:
    judged = of_tokens([1], [1, 2, 3], [1, 2, 3, 4])
    assert reason({"type": "length", "min_tokens": 1, "max_tokens": 4}, judged) is None
    assert reason({"type": "length", "max_tokens": 3}, judged) == "length"
    assert reason({"type": "length", "min_tokens": 2}, judged) == "length"
    assert reason({"type": "length", "max_tokens": 3, "share": 0.34}, judged) is None, "one of three"


def test_repetition_counts_runs_that_were_there_before() -> None:
    judged = of_tokens([1, 2, 1, 2, 1, 2], [1, 2, 3, 4, 5, 6])
    assert repeated_share(judged.samples[0], 2) == pytest.approx(3 / 5), "12 21 12 21 12: two of five are new"
    assert repeated_share(judged.samples[1], 2) == 0.0
    assert repeated_share(judged.samples[0], 7) == 0.0, "shorter than a run"
    assert reason({"type": "repetition", "ngram": 2, "max_repeated": 0.6}, judged) is None
    assert reason({"type": "repetition", "ngram": 2, "max_repeated": 0.59}, judged) == "repetition"
    assert reason({"type": "repetition", "ngram": 2, "max_repeated": 0.59, "share": 0.5}, judged) is None


def test_staleness_is_that_of_the_oldest_token_in_the_batch_that_is_composed() -> None:
    judged = of_tokens([1, 2, 3], [1, 2, 3], versions=[3, 4, 6])
    entry = {"type": "staleness", "max_staleness": 3}
    assert reason(entry, judged, batch=6) is None
    assert reason(entry, judged, batch=7) == "staleness", "the tokens of version 3 would be 4 batches old"
    assert reason(entry, group(None, None), batch=7) is None


def test_a_user_filter_takes_parameters(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("def at_least(group, count): return len(group.samples) >= count")
    entry = {"type": "function", "function": f"{tmp_path}/f.py:at_least", "arguments": {"count": 3}}
    assert reason(entry, group(0.0, 1.0)) == "at_least"
    assert reason(entry, group(0.0, 1.0, 0.0)) is None


@pytest.mark.parametrize("entry", [
    {"type": "reward_range"}, {"type": "reward_range", "low": 1, "high": 0}, {"type": "length"},
    {"type": "length", "min_tokens": 3, "max_tokens": 2}, {"type": "lenght"}, {"type": "staleness"}, 3,
])  # fmt: skip
def test_a_filter_that_is_none_is_refused(entry: object) -> None:
    with pytest.raises(ValidationError):
        RolloutConfig.model_validate({"filters": [entry]})


def test_an_unknown_filter_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.filters has 'zero'; write zero_spread or path\.py:function"):
        load_filters(("zero",))
