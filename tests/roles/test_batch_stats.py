"""Which tokens may be trained, and what is counted of them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from table_rows import row as table_row

from headrace.experience.header import Span, mask_of
from headrace.experience.leases import Row
from headrace.experience.sample import GroupKey, SampleStatus
from headrace.roles.actors.batch_stats import BatchStats, FreshRule, StalenessRule
from headrace.training.rows.spans import StalenessError, check_spans
from headrace.weights.version import Lineage

WAIT = StalenessRule(bound=2, masks=False, allows_late=False)
MASK = StalenessRule(bound=2, masks=True, allows_late=False)
LATE = StalenessRule(bound=2, masks=False, allows_late=True)


def row(versions: list[int], branches: list[int] | None = None, *, truncated: bool = False) -> Row:
    """A prompt token, then tokens sampled by these versions."""
    of_tokens = enumerate(zip(branches or [0] * len(versions), versions, strict=True), 1)
    spans = [(branch, number, place, place + 1) for place, (branch, number) in of_tokens]
    status = SampleStatus.TRUNCATED if truncated else SampleStatus.COMPLETED
    return table_row(0, {"reward": 0.5, "terms": {}}, length=len(versions) + 1, spans=spans, status=status)


def tokens(spans: Sequence[Span], of: Row) -> list[bool]:
    return mask_of(spans, of.header.length).tolist()


def trained(rule: StalenessRule, of: Row, batch: int) -> list[bool]:
    return tokens(rule.trained(of.header, batch), of)


def test_within_the_bound_all_policy_tokens_are_trained() -> None:
    assert trained(WAIT, row([3, 4, 5]), 5) == [False, True, True, True]


def test_a_token_past_the_bound_is_never_trained_through() -> None:
    with pytest.raises(StalenessError, match="reached batch 6 with staleness 3, bound 2"):
        WAIT.trained(row([3, 4, 5]).header, batch=6)


def test_mask_leaves_out_exactly_the_tokens_past_the_bound() -> None:
    assert trained(MASK, row([3, 4, 5]), 6) == [False, False, True, True]


def test_late_trains_the_sample_whole() -> None:
    assert trained(LATE, row([3, 4, 5]), 9) == [False, True, True, True]


@pytest.mark.parametrize("rule", [WAIT, MASK, LATE])
def test_a_sample_that_was_cut_off_is_left_out_whole_where_the_rule_says_so(rule: StalenessRule) -> None:
    leaves_out = replace(rule, masks_truncated=True)
    whole, cut = row([5, 5]), row([5, 5], truncated=True)
    assert trained(leaves_out, whole, 6) == [False, True, True]
    assert trained(leaves_out, cut, 6) == [False] * 3
    assert leaves_out.chosen(cut.header) == (), "which is what the critic goes by"
    assert trained(rule, cut, 6) == [False, True, True]
    stats = BatchStats()
    for item in (whole, cut):
        stats.add(item, leaves_out.trained(item.header, 6), 6, leaves_out, Lineage(0, {0: 2**62}))
    assert (stats.samples, stats.truncated_samples, stats.response_tokens) == (2, 1, 4)
    assert stats.masked_tokens == 0, "those are the tokens that are too old"
    assert dict(stats.staleness) == {1: 2}


def test_a_version_newer_than_the_batch_has_staleness_zero() -> None:
    """After a restore, tokens of a branch that was left can be of later versions than the batch that trains them."""
    assert [MASK.staleness(2, version) for version in (1, 2, 5)] == [1, 0, 0]


def test_counts_of_a_batch() -> None:
    stats = BatchStats()
    lineage = Lineage(1, {1: 2**62, 0: 3})
    for item in (row([3, 4, 5], [0, 0, 1]), row([5, 6], [1, 1])):
        stats.add(item, MASK.trained(item.header, batch=6), 6, MASK, lineage)
    assert stats.samples == 2
    assert stats.reward == 1.0
    assert stats.response_tokens == 5
    assert stats.masked_tokens == 1
    assert dict(stats.staleness) == {0: 1, 1: 2, 2: 1}
    assert stats.lost_branch_tokens == 1, "version 4 of branch 0 was taken back; version 3 was not, but is masked"
    stats.leave_untrained()
    assert (stats.samples, stats.reward, stats.response_tokens) == (2, 1.0, 5)
    assert (stats.trained_samples, stats.masked_tokens, stats.lost_branch_tokens) == (0, 0, 0)
    assert not stats.staleness


def test_terms_are_means_over_the_samples_that_have_them() -> None:
    stats, items = BatchStats(), [row([5]) for _ in range(3)]
    items[0].columns |= {"terms": {"math": 1.0, "format": 0.25}, "model_score": -2.0}
    items[1].columns |= {"terms": {"math": 0.5}, "model_score": 3.0}
    for item in items:
        stats.add(item, WAIT.trained(item.header, batch=5), 5, WAIT, Lineage(0, {0: 2**62}))
    assert stats.terms == {"math": 0.75, "format": 0.25, "model": 0.5}


def test_lineage_knows_what_was_taken_back() -> None:
    lineage = Lineage(2, {2: 2**62, 0: 4})
    assert [lineage.lost(*version) for version in ((0, 4), (0, 5), (1, 1), (2, 9))] == [False, True, True, False]


def fresh(rule: FreshRule, versions: list[int], branches: list[int] | None = None, batch: int = 5) -> list[bool]:
    of = row(versions, branches)
    return tokens(rule.tokens(batch, of.header.spans), of)


def test_fresh_tokens_are_those_that_the_batchs_first_weights_sampled() -> None:
    rule = FreshRule(Lineage(0, {0: 2**62}))
    assert fresh(rule, [4, 5, 5]) == [False, False, True, True]
    assert fresh(rule, [5, 6]) == [False, True, False], "a later version is none of them"


def test_a_version_that_a_restore_kept_is_the_same_weights_on_both_branches() -> None:
    rule = FreshRule(Lineage(1, {1: 2**62, 0: 5}))
    assert fresh(rule, [5, 5], [0, 1]) == [False, True, True]
    taken_back = FreshRule(Lineage(1, {1: 2**62, 0: 4}))
    assert fresh(taken_back, [5, 5], [0, 1]) == [False, False, True]


def test_where_keys_are_kept_over_a_swap_only_whole_samples_are_fresh() -> None:
    rule = FreshRule(Lineage(0, {0: 2**62}), keeps_keys=True)
    assert fresh(rule, [5, 5]) == [False, True, True]
    assert fresh(rule, [4, 5]) == [False, False, False]


@pytest.mark.parametrize(
    ("rewards", "equal", "lowest_highest"),
    [
        ([[0.0, 0.0], [1.0, 1.0], [0.0, 1.0]], 2, (0.0, 1.0)),
        ([[0.5], [0.5]], 2, (0.5, 0.5)),  # groups of one sample are compared with each other
        ([[0.5], [0.25]], 0, (0.25, 0.5)),
        ([[0.5], [0.25, 0.25]], 2, (0.25, 0.5)),
        ([[0.5]], 0, (0.5, 0.5)),
    ],
)
def test_groups_whose_samples_all_have_one_reward(
    rewards: list[list[float]], equal: int, lowest_highest: tuple[float, float]
) -> None:
    stats = BatchStats()
    for position, group in enumerate(rewards):
        for episode, reward in enumerate(group):
            stats.count_reward(GroupKey(0, position, 0), episode, 0, reward)
    assert stats.equal_groups == equal
    assert stats.reward_range == lowest_highest


def test_an_episode_of_several_samples_counts_once_by_its_last() -> None:
    """One right in one history, one wrong in four: half are right. Whichever sample is counted first."""
    stats, key = BatchStats(), GroupKey(0, 0, 0)
    stats.count_reward(key, 0, 0, 1.0)
    for index, reward in ((3, 0.0), (0, 1.0), (1, 1.0), (2, 0.0)):
        stats.count_reward(key, 1, index, reward)
    assert (stats.reward, stats.episode_reward_mean, stats.equal_groups) == (3.0, 0.5, 0)
    assert stats.reward_range == (0.0, 1.0)


def test_groups_whose_episodes_end_alike_are_equal() -> None:
    stats = BatchStats()
    for episode in range(2):
        stats.count_reward(GroupKey(0, 0, 0), episode, 0, 0.0)
        stats.count_reward(GroupKey(0, 0, 0), episode, 1, 1.0)
    assert stats.equal_groups == 1, "they are compared by 1 and 1"


@pytest.mark.parametrize(
    ("name", "values"),
    [("versions", [-1, 3, 4, 4]), ("branches", [-1, 0, 0, 1]), ("loss_mask", [False, True, True, False])],
)
def test_a_header_that_is_not_of_the_tokens_is_never_trained_by(name: str, values: list[int]) -> None:
    of = row([3, 4, 5])
    columns = {
        "versions": np.array([-1, 3, 4, 5], np.int32),
        "branches": np.array([-1, 0, 0, 0], np.int32),
        "loss_mask": np.array([False, True, True, True]),
    }
    check_spans(of.header, columns)
    with pytest.raises(StalenessError, match="not those of its header"):
        check_spans(of.header, {**columns, name: np.array(values, columns[name].dtype)})


def test_versions_of_a_record_may_be_from_before_version_0() -> None:
    """Where a record's first batches are gone, its versions are moved with the numbers of its batches."""
    assert trained(WAIT, row([-2, -1]), 0) == [False, True, True]
