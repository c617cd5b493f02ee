import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms.advantages import discounted_returns, gae

F64 = torch.float64
NAN = math.nan


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


# Sample 4: steps with rewards 1, 2, 4 and values 0.5, 1, 2; a tool's answer stands between the first and the
# second. Sample 6 has no step. Sample 9: one step, with a prompt before it and padding behind.
REWARDS = tensor(1, NAN, 2, 4, NAN, NAN, 3, 100)
VALUES = tensor(0.5, NAN, 1, 2, math.inf, NAN, 5, -7)
MASK = torch.tensor([True, False, True, True, False, False, True, False])
SAMPLES = torch.tensor([4, 4, 4, 4, 6, 9, 9, 9])


def test_discounted_returns_by_hand() -> None:
    expected = tensor(1 + 0.5 * (2 + 0.5 * 4), 0, 2 + 0.5 * 4, 4, 0, 0, 3, 0)
    close(discounted_returns(REWARDS, MASK, SAMPLES, gamma=0.5), expected)


def test_gae_by_hand() -> None:
    # gamma 1/2, lambda 1/2: deltas 1 + 1/2 - 1/2 = 1, 2 + 1 - 1 = 2, 4 - 2 = 2; advantages from the end, each
    # delta plus a quarter of the next: 2, 2.5, 1.625.
    advantages, returns = gae(REWARDS, VALUES, MASK, SAMPLES, gamma=0.5, lam=0.5)
    close(advantages, tensor(1.625, 0, 2.5, 2, 0, 0, -2, 0))
    close(returns, tensor(2.125, 0, 3.5, 4, 0, 0, 3, 0))


def test_lambda_one_is_return_minus_value_and_lambda_zero_is_one_step() -> None:
    returns = discounted_returns(REWARDS, MASK, SAMPLES, gamma=0.9)
    advantages, targets = gae(REWARDS, VALUES, MASK, SAMPLES, gamma=0.9, lam=1.0)
    close(targets, returns)
    close(advantages, torch.where(MASK, returns - VALUES, 0.0))
    one_step, _ = gae(REWARDS, VALUES, MASK, SAMPLES, gamma=0.9, lam=0.0)
    close(one_step, tensor(1 + 0.9 * 1 - 0.5, 0, 2 + 0.9 * 2 - 1, 4 - 2, 0, 0, 3 - 5, 0))


def test_nothing_in_gives_nothing_out() -> None:
    none, samples = tensor(), torch.tensor([], dtype=torch.int64)
    mask = torch.tensor([], dtype=torch.bool)
    assert discounted_returns(none, mask, samples, gamma=1.0).shape == (0,)
    advantages, returns = gae(REWARDS, VALUES, torch.zeros_like(MASK), SAMPLES, gamma=1.0, lam=1.0)
    assert advantages.tolist() == returns.tolist() == [0.0] * 8


def test_no_gradient_leaves_and_no_input_changes() -> None:
    values = VALUES.clone().requires_grad_()
    rewards = REWARDS.clone()
    advantages, returns = gae(rewards, values, MASK, SAMPLES, gamma=0.5, lam=0.5)
    assert not advantages.requires_grad
    assert not returns.requires_grad
    assert torch.equal(rewards.nan_to_num(), REWARDS.nan_to_num())
    assert torch.equal(values.detach().nan_to_num(), VALUES.nan_to_num())


@pytest.mark.parametrize("given_dtype", [torch.float32, torch.bfloat16, F64])
def test_dtypes(given_dtype: torch.dtype) -> None:
    result = F64 if given_dtype == F64 else torch.float32
    assert discounted_returns(REWARDS.to(given_dtype), MASK, SAMPLES, gamma=1.0).dtype == result
    both = gae(REWARDS.to(given_dtype), VALUES.to(given_dtype), MASK, SAMPLES, gamma=1.0, lam=1.0)
    assert {each.dtype for each in both} == {result}


def test_long_samples_in_float32_keep_their_digits() -> None:
    generator = torch.Generator().manual_seed(5)
    rewards, values = torch.randn(2, 20_000, generator=generator)
    mask, samples = torch.ones(20_000, dtype=torch.bool), torch.zeros(20_000, dtype=torch.int64)
    for narrow, wide in zip(
        gae(rewards, values, mask, samples, gamma=1.0, lam=1.0),
        gae(rewards.double(), values.double(), mask, samples, gamma=1.0, lam=1.0),
        strict=True,
    ):
        torch.testing.assert_close(narrow.double(), wide, rtol=1e-7, atol=1e-6)


@pytest.mark.parametrize(("gamma", "lam", "message"), [(1.1, 1, "gamma is 1.1"), (1, -0.1, "lam is -0.1")])
def test_factors_outside_zero_to_one_are_named(gamma: float, lam: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gae(REWARDS, VALUES, MASK, SAMPLES, gamma=gamma, lam=lam)


step = st.tuples(st.floats(-5, 5), st.floats(-5, 5), st.booleans())
batches = st.lists(st.lists(step, min_size=1, max_size=12), min_size=1, max_size=6)


def flat(samples, start: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    rows = [row for sample in samples for row in sample]
    rewards, values, inside = zip(*rows, strict=True)
    index = [start + i for i, sample in enumerate(samples) for _ in sample]
    return tensor(*rewards), tensor(*values), torch.tensor(inside), torch.tensor(index)


@settings(max_examples=80, deadline=None)
@given(batches, st.floats(0, 1), st.floats(0, 1))
def test_gae_agrees_with_the_recursion_over_the_steps_alone(samples, gamma, lam) -> None:
    advantages, returns = gae(*flat(samples), gamma=gamma, lam=lam)
    place = sum(len(sample) for sample in samples)
    for sample in reversed(samples):
        advantage = following = 0.0
        for reward, value, inside in reversed(sample):
            place -= 1
            if not inside:
                assert advantages[place].item() == returns[place].item() == 0.0
                continue
            advantage = reward + gamma * following - value + gamma * lam * advantage
            following = value
            assert advantages[place].item() == pytest.approx(advantage, abs=1e-10)
            assert returns[place].item() == pytest.approx(advantage + value, abs=1e-10)


@settings(max_examples=60, deadline=None)
@given(batches, st.floats(0, 1), st.randoms(use_true_random=False))
def test_each_sample_has_its_own_time(samples, gamma, random) -> None:
    whole, _ = gae(*flat(samples), gamma=gamma, lam=0.95)
    parts = whole.split([len(sample) for sample in samples])
    order = list(range(len(samples)))
    random.shuffle(order)
    moved, _ = gae(*flat([samples[i] for i in order], start=7), gamma=gamma, lam=0.95)
    assert torch.equal(moved, torch.cat([parts[i] for i in order]))
    alone, _ = gae(*flat([samples[order[0]]]), gamma=gamma, lam=0.95)
    assert torch.equal(alone, parts[order[0]])
