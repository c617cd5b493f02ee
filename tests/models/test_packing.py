from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.algorithms.kept_sets import KeptSets
from headrace.models.length_batches import SegmentPlan
from headrace.models.packing import PackRow, cut_up, pack, plan_microbatches


def row(tokens: list[int], mask: list[bool], **columns: object) -> PackRow:
    return PackRow(np.array(tokens, np.int32), np.array(mask), columns)  # type: ignore[arg-type]


def test_rows_lie_end_to_end_and_everything_is_aligned_with_the_tokens() -> None:
    micro = pack(
        [
            row([5, 6, 7], [True, True, False], advantages=2.0, logprobs=np.array([0.0, -1.0, -2.0])),
            row([8], [True], advantages=-1.0, logprobs=np.array([0.5])),
            row([9, 4], [False, True], advantages=0.5, logprobs=np.array([0.0, -3.0], np.float32)),
        ]
    )
    assert micro.tokens.tolist() == [5, 6, 7, 8, 9, 4]
    assert micro.positions.tolist() == [0, 1, 2, 0, 0, 1]
    assert micro.sequence_starts.tolist() == [0, 3, 4, 6]
    assert micro.sample_index.tolist() == [0, 0, 0, 1, 2, 2]
    assert micro.mask.tolist() == [False, True, False, False, False, True], "a first token is never trained"
    assert micro.columns["advantages"].tolist() == [2, 2, 2, -1, 0.5, 0.5]
    assert micro.columns["logprobs"].tolist() == [0, -1, -2, 0.5, 0, -3]
    assert (micro.num_tokens, micro.num_samples, micro.lengths) == (6, 3, [3, 1, 2])
    assert micro.tokens.dtype == micro.positions.dtype == micro.sample_index.dtype == torch.int64
    assert all(column.dtype == torch.float32 for column in micro.columns.values())


def test_a_micro_batch_is_cut_up_into_what_its_samples_packed_by_themselves_are() -> None:
    rng = np.random.default_rng(0)
    rows = []
    for length in (5, 1, 4, 2, 7):
        counts = rng.integers(0, 4, length).astype(np.int32)
        sets = KeptSets.of(np.concatenate([np.arange(n, dtype=np.int32) for n in counts]), counts, 16)
        rows.append(
            PackRow(
                rng.integers(0, 16, length),
                rng.random(length) < 0.5,
                {"weights": rng.normal(size=length)},
                sets,
                np.ones(length, np.float32),
                rng.integers(0, 8, (max(length - 1, 1), 3, 2)).astype(np.uint8),
            )
        )
    found = cut_up(pack(rows), [2, 1, 2])
    for part, expected in zip(found, (pack(rows[:2]), pack(rows[2:3]), pack(rows[3:])), strict=True):
        for name in ("tokens", "positions", "sequence_starts", "mask", "sample_index", "temperatures", "experts"):
            assert torch.equal(getattr(part, name), getattr(expected, name)), name
        assert torch.equal(part.columns["weights"], expected.columns["weights"])
        assert part.kept is not None
        assert expected.kept is not None
        assert torch.equal(part.kept.ids, expected.kept.ids)
        assert torch.equal(part.kept.counts, expected.kept.counts)


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ValueError, match="mask has shape"):
        row([1, 2], [True])
    with pytest.raises(ValueError, match=r"advantages has shape \(3,\), but the row has 2 tokens"):
        row([1, 2], [True, True], advantages=np.zeros(3))
    with pytest.raises(ValueError, match="without tokens"):
        row([], [])
    with pytest.raises(ValueError, match="no rows"):
        pack([])
    with pytest.raises(ValueError, match="row 1 has columns"):
        pack([row([1], [True], a=1.0), row([1], [True], b=1.0)])


def test_micro_batches_are_as_few_as_the_order_allows_and_their_tokens_are_balanced() -> None:
    assert plan_microbatches([10] * 9, 40) == [[0, 1, 2], [3, 4, 5], [6, 7, 8]], "30 each, not 40, 40 and 10"
    assert plan_microbatches([6, 5, 4, 12, 5, 1], 10) == [[0], [1, 2], [3], [4, 5]], "12 is one of its own"
    assert plan_microbatches([3, 1, 1, 1, 3, 1], 4) == [[0, 1], [2, 3], [4, 5]], "4, 2 and 4"
    assert plan_microbatches([], 10) == []
    with pytest.raises(ValueError, match="max_tokens is 0"):
        plan_microbatches([1], 0)


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 60))
def test_every_sample_is_in_one_micro_batch_within_the_budget(lengths: list[int], budget: int) -> None:
    plan = plan_microbatches(lengths, budget)
    assert [i for places in plan for i in places] == list(range(len(lengths))), "neighbours stay together"
    for places in plan:
        assert sum(lengths[i] for i in places) <= budget or len(places) == 1


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(1, 20))
def test_no_other_cut_in_that_order_is_better(lengths: list[int], budget: int) -> None:
    """Against all 2^(n - 1) cuts."""

    def worst(plan: list[list[int]]) -> int:
        return max(sum(lengths[i] for i in places) for places in plan)

    def allowed(plan: list[list[int]]) -> bool:
        return all(sum(lengths[i] for i in places) <= budget or len(places) == 1 for places in plan)

    cuts = []
    for bits in range(2 ** (len(lengths) - 1)):
        plan: list[list[int]] = [[0]]
        for i in range(1, len(lengths)):
            if bits >> (i - 1) & 1:
                plan.append([])
            plan[-1].append(i)
        cuts.append(plan)
    fewest = min(len(plan) for plan in cuts if allowed(plan))
    best = min(worst(plan) for plan in cuts if allowed(plan) and len(plan) == fewest)
    plan = plan_microbatches(lengths, budget)
    assert (len(plan), worst(plan)) == (fewest, best)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=200))
def test_parts_differ_by_less_than_their_longest_sample(lengths: list[int]) -> None:
    """All but the last, which has the rest."""
    loads = [sum(lengths[i] for i in places) for places in plan_microbatches(lengths, 200)]
    assert max(loads) <= -(-sum(lengths) // len(loads)) + max(lengths)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40))
def test_regrouping_keeps_every_token_and_fills_little(lengths: list[int]) -> None:
    plan = SegmentPlan.of(lengths, torch.device("cpu"))
    values = torch.arange(sum(lengths), dtype=torch.float64)
    regrouped = plan.regroup(values)
    assert torch.equal(plan.restore(regrouped), values)
    sample = torch.repeat_interleave(torch.tensor(lengths))
    offset = 0
    for samples, longest in plan.shapes:
        for part in regrouped[offset : offset + samples * longest].view(samples, longest).long():
            assert len(set(sample[part].tolist())) == 1, "a line of a batch holds one sample"
            size = len(set(part.tolist()))
            assert part[:size].diff().eq(1).all()
            assert part[size:].eq(part[size - 1]).all()
            assert size >= 0.75 * longest - 8
        offset += samples * longest
    assert offset == len(regrouped)


def test_gradients_pass_the_regrouping_both_ways() -> None:
    plan = SegmentPlan.of([3, 40, 2, 37, 12], torch.device("cpu"))
    values = torch.randn(94, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: plan.restore(plan.regroup(x).sin()), values)
