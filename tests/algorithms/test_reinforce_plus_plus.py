import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms.advantages import reinforce_plus_plus, reinforce_plus_plus_baseline, whiten

F64 = torch.float64
NAN = math.nan


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


# Sample 5 (reward 10): trained tokens with KL 1 and 2, the environment's between. Sample 6 (reward 7): none
# trained. Sample 8 (reward -4): one, with KL 3.
MASK = torch.tensor([True, False, True, False, False, True, False])
SAMPLES = torch.tensor([5, 5, 5, 5, 6, 8, 8])
KL = tensor(1, NAN, 2, NAN, NAN, 3, math.inf)
REWARDS = tensor(10, 7, -4)
# beta 0.1, gamma 0.5: token rewards -0.1, 10 - 0.2 and -4 - 0.3.
RETURNS = tensor(-0.1 + 0.5 * 9.8, 0, 9.8, 0, 0, -4.3, 0)


def test_by_hand_without_whitening() -> None:
    close(reinforce_plus_plus(REWARDS, KL, MASK, SAMPLES, beta=0.1, gamma=0.5, whiten=False), RETURNS)


def test_whitening_is_over_the_trained_tokens_of_the_batch() -> None:
    whitened = reinforce_plus_plus(REWARDS, KL, MASK, SAMPLES, beta=0.1, gamma=0.5)
    close(whitened, whiten(RETURNS, MASK))
    inside = [4.8, 9.8, -4.3]
    mean = sum(inside) / 3
    std = math.sqrt(sum((x - mean) ** 2 for x in inside) / 2 + 1e-8)
    close(whitened[MASK], tensor(*((x - mean) / std for x in inside)))


def test_baseline_by_hand() -> None:
    # Groups: samples 5 and 8 (mean 3), and 6 alone, which has no trained token either.
    groups = torch.tensor([2, 9, 2])
    plain = reinforce_plus_plus_baseline(REWARDS, groups, MASK, SAMPLES, whiten=False)
    close(plain, tensor(7, 0, 7, 0, 0, -7, 0))
    # Over tokens 7, 7, -7: mean 7 / 3, unbiased variance ((14/3)^2 * 2 + (28/3)^2) / 2 = 196 / 3.
    std = math.sqrt(196 / 3 + 1e-8)
    expected = tensor(14 / 3, 0, 14 / 3, 0, 0, -28 / 3, 0) / std
    close(reinforce_plus_plus_baseline(REWARDS, groups, MASK, SAMPLES), expected)


def test_a_group_of_one_is_its_own_baseline() -> None:
    plain = reinforce_plus_plus_baseline(REWARDS, torch.tensor([0, 1, 2]), MASK, SAMPLES, whiten=False)
    assert plain.tolist() == [0.0] * 7


def test_a_sample_without_any_token_has_a_row_all_the_same() -> None:
    rewards = tensor(10, 99, -4)
    samples = torch.tensor([0, 0, 0, 0, 2, 2, 2])
    kl = torch.zeros_like(KL)
    actual = reinforce_plus_plus(rewards, kl, MASK, samples, beta=1.0, gamma=1.0, whiten=False)
    close(actual, tensor(10, 0, 10, 0, 0, -4, 0))
    with pytest.raises(ValueError, match="names 3 samples, from 5 to 8, for 4 rows"):
        reinforce_plus_plus(tensor(1, 2, 3, 4), KL, MASK, SAMPLES, beta=0.1, gamma=1.0)


def test_gamma_outside_zero_to_one_is_named() -> None:
    with pytest.raises(ValueError, match="gamma is 2"):
        reinforce_plus_plus(REWARDS, KL, MASK, SAMPLES, beta=0.1, gamma=2)


samples_of_tokens = st.lists(
    st.tuples(
        st.floats(-5, 5),
        st.integers(-1, 1),
        st.lists(st.tuples(st.floats(-1, 1), st.booleans()), min_size=1, max_size=6),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(samples_of_tokens, st.floats(0, 1), st.floats(0, 1), st.randoms(use_true_random=False))
def test_order_of_samples_does_not_matter_and_no_input_changes(samples, beta, gamma, random) -> None:
    order = list(range(len(samples)))
    random.shuffle(order)

    def run(rows) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        lengths = [len(tokens) for _, _, tokens in rows]
        rewards, groups = tensor(*(row[0] for row in rows)), torch.tensor([row[1] for row in rows])
        kl = tensor(*(value for _, _, tokens in rows for value, _ in tokens))
        mask = torch.tensor([inside for _, _, tokens in rows for _, inside in tokens])
        index = torch.repeat_interleave(torch.arange(3, 3 + len(rows)), torch.tensor(lengths))
        inputs = (rewards, groups, kl, mask, index)
        before = [x.clone() for x in inputs]
        first = reinforce_plus_plus(rewards, kl, mask, index, beta=beta, gamma=gamma)
        second = reinforce_plus_plus_baseline(rewards, groups, mask, index)
        assert all(torch.equal(x, y) for x, y in zip(inputs, before, strict=True))
        return list(first.split(lengths)), list(second.split(lengths))

    for plain, moved in zip(run(samples), run([samples[i] for i in order]), strict=True):
        for place, index in enumerate(order):
            torch.testing.assert_close(moved[place], plain[index], rtol=1e-8, atol=1e-8)
