import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms.corrections import Weights, behavior_weights, effective_sample_size

F64 = torch.float64

# Two samples, 4 and 9. Ratios proximal / behaviour of the tokens inside the mask: 2, 4 and 0.1, 0.5; the
# token between is the environment's.
RATIOS = torch.tensor([2.0, 100.0, 4.0, 0.1, 0.5], dtype=F64)
MASK = torch.tensor([True, False, True, True, True])
SAMPLES = torch.tensor([4, 4, 4, 9, 9])


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def weigh(**options: object) -> Weights:
    behavior = torch.full_like(RATIOS, -2.0)
    return behavior_weights(behavior + RATIOS.log(), behavior, MASK, SAMPLES, **options)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"low": 0.3, "high": 3.0}, (2, 0, 3, 0.3, 0.5)),
        ({"low": 0.3, "high": 3.0, "mode": "clip"}, (2, 0, 3, 0.3, 0.5)),
        ({"low": 0.3, "high": 3.0, "mode": "mask"}, (2, 0, 0, 0, 0.5)),
        ({"low": 0.0, "high": math.inf}, (2, 0, 4, 0.1, 0.5)),
        # Products of the sample's tokens: 8 and 0.05.
        ({"low": 0.0, "high": math.inf, "level": "sequence"}, (8, 0, 8, 0.05, 0.05)),
        ({"low": 0.1, "high": 5.0, "level": "sequence"}, (5, 0, 5, 0.1, 0.1)),
        ({"low": 0.1, "high": 10.0, "level": "sequence", "mode": "mask"}, (8, 0, 8, 0, 0)),
        # Geometric means over two tokens: square roots of the products.
        ({"low": 0.0, "high": math.inf, "level": "geometric"}, (8**0.5, 0, 8**0.5, 0.05**0.5, 0.05**0.5)),
        ({"low": 0.5, "high": 2.0, "level": "geometric", "mode": "clip"}, (2, 0, 2, 0.5, 0.5)),
        # A veto looks at tokens' own ratios whatever the level, and takes the whole sample.
        ({"low": 0.0, "high": 5.0, "veto": 0.2}, (2, 0, 4, 0, 0)),
        ({"low": 0.0, "high": 9.0, "level": "sequence", "veto": 0.2}, (8, 0, 8, 0, 0)),
        ({"low": 0.0, "high": 5.0, "veto": 0.05}, (2, 0, 4, 0.1, 0.5)),
    ],
)
def test_weights_by_hand(options: dict[str, object], expected: tuple[float, ...]) -> None:
    close(weigh(**options).per_token, tensor(*expected))


def test_a_geometric_mean_is_over_the_tokens_inside_the_mask() -> None:
    # Samples of one token (ratio 3) and of three (1, 2, 4: their product 8, its cube root 2), one token outside.
    ratios, mask = tensor(3, 1, 2, 50, 4), torch.tensor([True, True, True, False, True])
    zero = torch.zeros_like(ratios)
    weights = behavior_weights(
        ratios.log(), zero, mask, torch.tensor([0, 1, 1, 1, 1]), level="geometric", low=0.0, high=9.0
    )
    close(weights.per_token, tensor(3, 2, 2, 0, 2))


def test_rejected_tokens_still_count() -> None:
    stats = weigh(low=0.3, high=3.0, mode="mask").stats
    assert (stats["tokens"].item(), stats["outside"].item()) == (4, 2)
    assert stats["ratio"].item() == pytest.approx(2 + 4 + 0.1 + 0.5)


def test_bounds_belong_to_the_inside() -> None:
    behavior, mask, samples = tensor(0.0, 0.0), torch.tensor([True, True]), torch.tensor([0, 1])
    weights = behavior_weights(tensor(0.0, 0.0), behavior, mask, samples, mode="mask", low=1.0, high=1.0)
    close(weights.per_token, tensor(1, 1))
    assert weights.stats["outside"].item() == 0


def test_stats_by_hand() -> None:
    stats = weigh(low=0.3, high=3.0, veto=0.2).stats
    assert stats["tokens"].item() == 4
    assert stats["ratio"].item() == pytest.approx(2 + 4 + 0.1 + 0.5)
    # KL(behaviour || proximal) by k3: r - 1 - log r with r = proximal / behaviour.
    assert stats["kl"].item() == pytest.approx(sum(r - 1 - math.log(r) for r in (2, 4, 0.1, 0.5)), abs=1e-10)
    assert stats["outside"].item() == 2
    assert stats["vetoed"].item() == 2
    assert stats["weight"].item() == pytest.approx(5)
    assert stats["weight_squared"].item() == pytest.approx(4 + 9)
    assert effective_sample_size(stats["weight"].item(), stats["weight_squared"].item()) == pytest.approx(25 / 13)


def test_effective_sample_size_of_nothing_is_zero() -> None:
    mask = torch.tensor([False])
    stats = behavior_weights(tensor(0.0), tensor(0.0), mask, torch.tensor([0]), low=0, high=2).stats
    assert effective_sample_size(stats["weight"].item(), stats["weight_squared"].item()) == 0.0


def test_only_clip_has_a_gradient_and_only_inside() -> None:
    for mode, expected in (("truncate", None), ("mask", None), ("clip", tensor(2, 0, 0, 0, 0.5))):
        behavior = torch.full_like(RATIOS, -2.0).requires_grad_()
        proximal = (behavior.detach() + RATIOS.log()).requires_grad_()
        weights = behavior_weights(proximal, behavior, MASK, SAMPLES, mode=mode, low=0.3, high=3.0)
        assert weights.per_token.requires_grad == (expected is not None)
        if expected is not None:
            weights.per_token.sum().backward()
            # d exp(log p - log b) / d log p is the weight itself.
            assert proximal.grad is not None
            close(proximal.grad, expected)
            assert behavior.grad is None


def test_far_weights_and_masked_out_numbers_stay_finite() -> None:
    proximal = torch.tensor([0.0, -2000.0, math.nan], requires_grad=True)
    behavior = torch.tensor([-2000.0, 0.0, math.inf])
    mask, samples = torch.tensor([True, True, False]), torch.tensor([0, 1, 1])
    weights = behavior_weights(proximal, behavior, mask, samples, mode="clip", low=0.1, high=5.0)
    weights.per_token.sum().backward()
    torch.testing.assert_close(weights.per_token.detach(), torch.tensor([5.0, 0.1, 0.0]))
    assert proximal.grad is not None
    assert proximal.grad.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low": 3.0, "high": 2.0}, "low is 3.0, high is 2.0"),
        ({"low": -1.0, "high": 2.0}, "low is -1.0"),
        ({"low": 0.0, "high": 2.0, "mode": "cut"}, "'cut'.*'truncate'"),
        ({"low": 0.0, "high": 2.0, "level": "word"}, "'word'.*'token'"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        weigh(**options)


@st.composite
def batches(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    size = sum(lengths)
    ids = sorted(draw(st.lists(st.integers(0, 50), min_size=len(lengths), max_size=len(lengths), unique=True)))
    samples = torch.tensor([i for i, n in zip(ids, lengths, strict=True) for _ in range(n)])
    logs = st.lists(st.floats(-3, 0), min_size=size, max_size=size)
    mask = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    return tensor(*draw(logs)), tensor(*draw(logs)), torch.tensor(mask), samples


@settings(max_examples=60, deadline=None)
@given(
    batches(),
    st.sampled_from(["token", "sequence", "geometric"]),
    st.sampled_from(["truncate", "mask", "clip"]),
    st.none() | st.floats(0, 1),
)
def test_whole_batch_equals_its_samples_one_by_one(data, level, mode, veto) -> None:
    proximal, behavior, mask, samples = data
    options = {"level": level, "mode": mode, "low": 0.25, "high": 2.0, "veto": veto}
    whole = behavior_weights(proximal, behavior, mask, samples, **options)
    parts = []
    for sample in samples.unique().tolist():
        here = samples == sample
        parts.append(behavior_weights(proximal[here], behavior[here], mask[here], samples[here], **options))
    close(torch.cat([part.per_token for part in parts]), whole.per_token)
    for name, total in whole.stats.items():
        close(torch.stack([part.stats[name] for part in parts]).sum(), total)
    assert ((whole.per_token == 0) | mask).all()
    assert whole.per_token.max().item() <= 2.0 + 1e-12
