import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms import advantages

F64 = torch.float64


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


# Group 7: rewards 1, 2, 6 (mean 3, centred -2, -1, 3, unbiased variance 14 / 2 = 7). Group 2: rewards 0, 4
# (mean 2, centred -2, 2, variance 8). Group 5: one sample. Groups interleave.
REWARDS = tensor(1, 0, 2, 9, 6, 4)
GROUPS = torch.tensor([7, 2, 7, 5, 7, 2])


def test_group_normalized_divides_by_the_groups_unbiased_std() -> None:
    seven, eight, eps = math.sqrt(7), math.sqrt(8), 1e-6
    expected = tensor(
        -2 / (seven + eps), -2 / (eight + eps), -1 / (seven + eps), 0, 3 / (seven + eps), 2 / (eight + eps)
    )
    close(advantages.group_normalized(REWARDS, GROUPS), expected)


def test_group_normalized_by_the_batch_std_centres_by_group() -> None:
    # All rewards: 1, 0, 2, 9, 6, 4; mean 22 / 6; sum of squares 138; variance (138 - 22^2 / 6) / 5 = 172 /
    # 15.
    std = math.sqrt(172 / 15) + 0.5
    expected = tensor(-2, -2, -1, 0, 3, 2) / std
    close(advantages.group_normalized(REWARDS, GROUPS, scale="batch_std", eps=0.5), expected)


def test_mean_only_leaves_the_scale() -> None:
    close(advantages.group_normalized(REWARDS, GROUPS, scale="none"), tensor(-2, -2, -1, 0, 3, 2))


def test_leave_one_out_takes_the_mean_of_the_others() -> None:
    expected = tensor(1 - (2 + 6) / 2, 0 - 4, 2 - (1 + 6) / 2, 0, 6 - (1 + 2) / 2, 4 - 0)
    close(advantages.leave_one_out(REWARDS, GROUPS), expected)


def test_opo_weighs_the_baseline_by_length() -> None:
    # Group 7: lengths 1, 3, 2: (1 + 6 + 12) / 6 = 19 / 6. Group 2: lengths 3, 1: (0 + 4) / 4 = 1. Group 5: itself.
    lengths = torch.tensor([1, 3, 3, 5, 2, 1])
    expected = tensor(1 - 19 / 6, 0 - 1, 2 - 19 / 6, 0, 6 - 19 / 6, 4 - 1)
    close(advantages.opo(REWARDS, lengths, GROUPS), expected)


def test_opo_with_equal_lengths_or_none_at_all_takes_the_mean() -> None:
    plain = advantages.group_normalized(REWARDS, GROUPS, scale="none")
    for length in (0, 7):
        close(advantages.opo(REWARDS, torch.full((6,), length), GROUPS), plain)


def test_opo_of_equal_rewards_is_exactly_zero() -> None:
    rewards = torch.full((5,), 0.1)
    assert advantages.opo(rewards, torch.tensor([3, 7, 1, 9, 0]), torch.tensor([0, 0, 0, 1, 1])).tolist() == [0.0] * 5


def test_unknown_scale_is_named() -> None:
    with pytest.raises(ValueError, match=r"'std'.*group_std"):
        advantages.group_normalized(REWARDS, GROUPS, scale="std")


@pytest.mark.parametrize("reward", [0.1, 0.7, 100.1, 1e6 + 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_equal_rewards_give_exactly_no_signal(reward: float, dtype: torch.dtype) -> None:
    rewards = torch.full((7,), reward, dtype=dtype)
    groups = torch.tensor([0, 0, 0, 1, 1, 1, 1])
    for scale in ("group_std", "batch_std", "none"):
        assert advantages.group_normalized(rewards, groups, scale=scale).tolist() == [0.0] * 7
    assert advantages.leave_one_out(rewards, groups).tolist() == [0.0] * 7


def test_a_lone_sample_gives_zero_whatever_the_scale() -> None:
    one, group = tensor(3.0), torch.tensor([4])
    for scale in ("group_std", "batch_std", "none"):
        assert advantages.group_normalized(one, group, scale=scale).item() == 0.0


def test_no_samples_give_no_advantages() -> None:
    empty, groups = tensor(), torch.tensor([], dtype=torch.int64)
    assert advantages.group_normalized(empty, groups).shape == (0,)
    assert advantages.leave_one_out(empty, groups).shape == (0,)
    assert advantages.opo(empty, groups, groups).shape == (0,)


@pytest.mark.parametrize(
    ("given_dtype", "result"),
    [(torch.float64, torch.float64), (torch.float32, torch.float32), (torch.bfloat16, torch.float32)],
)
def test_dtype_is_kept_or_raised_to_float32(given_dtype: torch.dtype, result: torch.dtype) -> None:
    assert advantages.group_normalized(REWARDS.to(given_dtype), GROUPS).dtype == result
    assert advantages.leave_one_out(REWARDS.to(given_dtype), GROUPS).dtype == result
    assert advantages.opo(REWARDS.to(given_dtype), torch.arange(6), GROUPS).dtype == result


@st.composite
def reward_groups(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    size = draw(st.integers(1, 12))
    rewards = draw(st.lists(st.floats(-10, 10), min_size=size, max_size=size))
    groups = draw(st.lists(st.sampled_from([-3, 0, 1, 40]), min_size=size, max_size=size))
    return torch.tensor(rewards, dtype=F64), torch.tensor(groups)


@settings(max_examples=60, deadline=None)
@given(reward_groups(), st.randoms(use_true_random=False))
def test_order_of_samples_and_numbering_of_groups_do_not_matter(data, random) -> None:
    rewards, groups = data
    order = list(range(len(rewards)))
    random.shuffle(order)
    before = rewards.clone(), groups.clone()
    for scale in ("group_std", "batch_std", "none"):
        plain = advantages.group_normalized(rewards, groups, scale=scale)
        moved = advantages.group_normalized(rewards[order], groups[order] * -2 + 5, scale=scale)
        torch.testing.assert_close(moved, plain[order], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        advantages.leave_one_out(rewards[order], groups[order]),
        advantages.leave_one_out(rewards, groups)[order],
        rtol=1e-9,
        atol=1e-9,
    )
    lengths = torch.arange(len(order))
    torch.testing.assert_close(
        advantages.opo(rewards[order], lengths[order], groups[order]),
        advantages.opo(rewards, lengths, groups)[order],
        rtol=1e-9,
        atol=1e-9,
    )
    assert torch.equal(rewards, before[0])
    assert torch.equal(groups, before[1])


@settings(max_examples=60, deadline=None)
@given(reward_groups())
def test_advantages_agree_with_a_loop_over_groups(data) -> None:
    rewards, groups = data
    normalized = advantages.group_normalized(rewards, groups)
    others = advantages.leave_one_out(rewards, groups)
    for group in set(groups.tolist()):
        places = [i for i, g in enumerate(groups.tolist()) if g == group]
        members = [rewards[i].item() for i in places]
        mean = math.fsum(members) / len(members)
        variance = math.fsum((r - mean) ** 2 for r in members) / max(len(members) - 1, 1)
        for i in places:
            rest = [rewards[j].item() for j in places if j != i]
            baseline = math.fsum(rest) / len(rest) if rest else rewards[i].item()
            assert normalized[i].item() == pytest.approx(
                (rewards[i].item() - mean) / (math.sqrt(variance) + 1e-6), rel=1e-7, abs=1e-7
            )
            assert others[i].item() == pytest.approx(rewards[i].item() - baseline, abs=1e-9)
