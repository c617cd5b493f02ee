"""What every loss per token keeps to, whatever it computes."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.algorithms import corrections, losses
from headrace.algorithms.aggregation import aggregate
from headrace.algorithms.losses import Loss

F64 = torch.float64
Columns = dict[str, torch.Tensor]


def bounds(columns: Columns, **options: object) -> corrections.Weights:
    names = ("logprobs", "other", "mask", "sample_index")
    return corrections.behavior_weights(*(columns[name] for name in names), low=0.5, high=2.0, **options)


def loss_of(function: Callable[..., Loss], *names: str, **options: object) -> Callable[[Columns], Loss]:
    return lambda columns: function(*(columns[name] for name in names), **options)


RATIO = ("logprobs", "other", "advantages", "mask")
SEQUENCE = (*RATIO, "sample_index")
CLIPS = {"clip_low": 0.2, "clip_high": 0.28}
FAMILY: dict[str, Callable[[Columns], Loss | corrections.Weights]] = {
    "clipped_surrogate": loss_of(losses.clipped_surrogate, *RATIO, **CLIPS, dual_clip=3.0),
    "cispo": loss_of(losses.cispo, *RATIO, **CLIPS),
    "sapo": loss_of(losses.sapo, *RATIO),
    "m2po": lambda c: losses.m2po(c["logprobs"], c["other"], c["advantages"], c["mask"], c["advantages"] > 0),
    "gspo": loss_of(losses.gspo, *SEQUENCE, **CLIPS),
    "geometric_mean": loss_of(losses.geometric_mean, *SEQUENCE),
    "value_loss": loss_of(losses.value_loss, "logprobs", "other", "advantages", "mask", clip=0.2),
    "reinforce": loss_of(losses.reinforce, "logprobs", "advantages", "mask"),
    "sft": loss_of(losses.sft, "logprobs", "mask"),
    "distillation": loss_of(losses.distillation, "logprobs", "other", "mask"),
    "kl_term": loss_of(losses.kl_term, "logprobs", "other", "mask", kind="k3+"),
    "weights of tokens": lambda c: bounds(c, mode="clip"),
    "weights of sequences": lambda c: bounds(c, mode="clip", level="sequence", veto=0.3),
    "weights of geometric means": lambda c: bounds(c, mode="clip", level="geometric"),
}
names = pytest.mark.parametrize("name", FAMILY)

token = st.tuples(st.floats(-3, 0), st.floats(-3, 0), st.booleans())
batches = st.lists(st.tuples(st.floats(-2, 2), st.lists(token, min_size=1, max_size=5)), min_size=1, max_size=6)


def columns_of(samples, *, start: int = 0, hole: float = 0.0) -> Columns:
    rows = [(a, start + 3 * i, *row) for i, (a, tokens) in enumerate(samples) for row in tokens]
    mask = torch.tensor([row[4] for row in rows], dtype=torch.bool)
    columns = {
        name: torch.tensor([row[place] if row[4] else row[place] + hole for row in rows], dtype=F64)
        for name, place in (("logprobs", 2), ("other", 3), ("advantages", 0))
    }
    index = torch.tensor([row[1] for row in rows], dtype=torch.int64)
    return {**columns, "mask": mask, "sample_index": index}


def run(name: str, columns: Columns) -> tuple[torch.Tensor, torch.Tensor, losses.Stats]:
    """Values, gradient of their sum by log-prob, and stats; nothing else may change, nor get a gradient."""
    leaves = {
        key: column.clone().requires_grad_() if column.is_floating_point() else column.clone()
        for key, column in columns.items()
    }
    result = FAMILY[name](leaves)
    result.per_token.sum().backward()
    for key, leaf in leaves.items():
        torch.testing.assert_close(leaf.detach(), columns[key], rtol=0, atol=0, equal_nan=True)
        assert leaf.grad is None or key == "logprobs"
    assert not any(stat.requires_grad for stat in result.stats.values())
    gradient = leaves["logprobs"].grad
    assert gradient is not None
    return result.per_token.detach(), gradient, result.stats


@names
@settings(max_examples=30, deadline=None)
@given(samples=batches, random=st.randoms(use_true_random=False))
def test_any_split_and_order_of_samples_is_the_whole(name, samples, random) -> None:
    values, gradient, stats = run(name, columns_of(samples))
    lengths = [len(tokens) for _, tokens in samples]
    values_of, gradients_of = values.split(lengths), gradient.split(lengths)
    order = list(range(len(samples)))
    random.shuffle(order)
    cut = random.randint(0, len(order))
    totals = dict.fromkeys(stats, 0.0)
    for part in (order[:cut], order[cut:]):
        if not part:
            continue
        columns = columns_of([samples[i] for i in part], start=11)
        part_values, part_gradient, part_stats = run(name, columns)
        expected = torch.cat([values_of[i] for i in part])
        torch.testing.assert_close(part_values, expected, rtol=1e-10, atol=1e-10)
        expected = torch.cat([gradients_of[i] for i in part])
        torch.testing.assert_close(part_gradient, expected, rtol=1e-10, atol=1e-10)
        for key, stat in part_stats.items():
            totals[key] += stat.item()
    for key, stat in stats.items():
        assert totals[key] == pytest.approx(stat.item(), rel=1e-10, abs=1e-9)


@names
@pytest.mark.parametrize("hole", [math.nan, math.inf, -math.inf])
@settings(max_examples=10, deadline=None)
@given(samples=batches)
def test_what_is_masked_out_has_no_influence(name, hole, samples) -> None:
    mask = columns_of(samples)["mask"]
    plain, other = run(name, columns_of(samples)), run(name, columns_of(samples, hole=hole))
    for x, y in zip((*plain[:2], *plain[2].values()), (*other[:2], *other[2].values()), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)
    assert not other[0][~mask].any()
    assert not other[1][~mask].any()


@names
def test_nothing_trained_is_nothing_and_still_differentiates(name: str) -> None:
    for samples in ([], [(1.0, [(-1.0, -2.0, False)] * 3)]):
        values, gradient, stats = run(name, columns_of(samples))
        assert not values.any()
        assert not gradient.any()
        assert all(stat.item() == 0 for stat in stats.values())


@names
@pytest.mark.parametrize(
    ("given_dtype", "result"),
    [(F64, F64), (torch.float32, torch.float32), (torch.bfloat16, torch.float32), (torch.float16, torch.float32)],
)
def test_dtypes(name: str, given_dtype: torch.dtype, result: torch.dtype) -> None:
    columns = columns_of([(1.0, [(-1.0, -1.5, True), (-0.5, -0.25, False)]), (-1.0, [(-2.0, -1.0, True)])])
    narrow = {key: x.to(given_dtype) if x.is_floating_point() else x for key, x in columns.items()}
    loss = FAMILY[name](narrow)
    assert loss.per_token.dtype == result
    assert {stat.dtype for stat in loss.stats.values()} == {result}


def test_a_rejected_token_counts_in_the_denominator_and_one_masked_out_does_not() -> None:
    columns = columns_of([(1.0, [(-1.0, -2.0, True), (-1.0, -1.0, False)]), (1.0, [(-1.0, -1.0, True)])])
    weights = bounds(columns, mode="mask").per_token
    assert weights.tolist() == [0, 0, 1]
    per_token = FAMILY["clipped_surrogate"](columns).per_token * weights
    for mode in ("token_mean", "sample_mean", "sample_sum"):
        numerator, denominator = aggregate(per_token, columns["mask"], columns["sample_index"], mode=mode)
        assert (numerator.item(), denominator.item()) == (-1, 2)
