import math

import pytest
import torch

from headrace.algorithms import shaping

F64 = torch.float64


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


def test_clipping_leaves_the_raw_rewards() -> None:
    rewards = tensor(-3, 0.5, 9)
    close(shaping.clip_rewards(rewards, low=-1, high=2), tensor(-1, 0.5, 2))
    assert rewards.tolist() == [-3, 0.5, 9]
    with pytest.raises(ValueError, match="low is 2, high is 1"):
        shaping.clip_rewards(rewards, low=2, high=1)


def test_overlong_penalty_by_hand() -> None:
    # DAPO's: 16384 expected tokens and a buffer of 4096 more, here in units of 1024.
    lengths = torch.tensor([0, 16, 17, 18, 20, 21, 99])
    expected = torch.tensor([0, 0, -0.25, -0.5, -1, -1, -1])
    torch.testing.assert_close(shaping.overlong_penalty(lengths, max_length=20, buffer=4), expected)
    torch.testing.assert_close(shaping.overlong_penalty(lengths, max_length=20, buffer=4, factor=3.0), 3 * expected)


def test_without_a_buffer_only_what_is_beyond_is_punished() -> None:
    lengths = torch.tensor([19, 20, 21])
    assert shaping.overlong_penalty(lengths, max_length=20, buffer=0).tolist() == [0, 0, -1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 4, "buffer": 5}, "buffer is 5, max_length is 4"),
        ({"max_length": 4, "buffer": -1}, "buffer is -1"),
        ({"max_length": 4, "buffer": 1, "factor": -1.0}, "factor is -1.0"),
    ],
)
def test_bad_overlong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shaping.overlong_penalty(torch.tensor([1]), **options)


def test_length_penalty_by_hand() -> None:
    # Group 0: lengths 10, 30, 20, 10 (shares 1/2, -1/2, 0, 1/2; the last is wrong). Group 8: all of 5. Group 3: one.
    lengths = torch.tensor([10, 5, 30, 20, 7, 5, 10])
    groups = torch.tensor([0, 8, 0, 0, 3, 8, 0])
    correct = torch.tensor([True, True, True, False, True, False, False])
    expected = torch.tensor([0.5, 0, -0.5, 0, 0, 0, 0])
    torch.testing.assert_close(shaping.length_penalty(lengths, correct, groups), expected)
    torch.testing.assert_close(shaping.length_penalty(lengths, ~correct, groups, weight=2.0)[2:3], torch.tensor([-1.0]))


def test_token_rewards_by_hand() -> None:
    mask = torch.tensor([False, True, True, False, True, False])
    kl = tensor(math.nan, 1, 2, math.nan, 3, 9)
    samples = torch.tensor([3, 3, 3, 3, 4, 7])
    rewards = tensor(10, 20, 30)
    close(shaping.token_rewards(rewards, kl, mask, samples, beta=0.5), tensor(0, -0.5, 9, 0, 18.5, 0))
    assert rewards.tolist() == [10, 20, 30]
    assert kl[1:3].tolist() == [1, 2]


def test_float64_on_either_side_gives_float64() -> None:
    mask, samples = torch.tensor([True]), torch.tensor([0])
    for rewards, kl in ((F64, torch.float32), (torch.float32, F64)):
        one = shaping.token_rewards(torch.ones(1, dtype=rewards), torch.ones(1, dtype=kl), mask, samples, beta=0.25)
        assert one.dtype == F64
        assert one.item() == 0.75
