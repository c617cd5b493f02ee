"""Sampling by kernels of its own on a CUDA device, and how an engine comes to use them."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from devices import CPU, CUDA
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_checks import SLACK, Params, faults, mixed, rows_of

from headrace.engines.embedded.fused_sampling import sampler_choice
from headrace.engines.embedded.fused_sampling.sampler_choice import Sample, choose_sampler, difference, probe
from headrace.engines.embedded.sampler import Sampled, sample

on_device = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
FUSED = "headrace.engines.embedded.fused_sampling.fused_sampler"
VALUES = [-2.0, -0.0, 0.0, 1.5, 1.5000001, 3.0, -30.0, float("-inf")]
ROWS = st.lists(st.sampled_from(VALUES), min_size=2, max_size=40)
BAD_ROWS = st.lists(st.sampled_from([*VALUES, float("nan"), float("inf")]), min_size=2, max_size=40)
PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 1.7]),
        "top_k": st.sampled_from([0, 1, 2, 5, 40]),
        "top_p": st.sampled_from([1e-6, 0.3, 0.5, 0.9, 0.999, 1.0]),
    }
)


def _check(sampler: Sample, row: list[float], params: Params, key: int, device: torch.device) -> None:
    logits = torch.tensor([row, row[::-1]], device=device)
    rows, positions = rows_of([params, params], len(row), device, key)
    sampled = sampler(logits, rows, positions)
    assert faults(sampled, logits, [params, params], rows, positions) == []


@given(ROWS, PARAMS, st.integers(0, 2**64 - 2))
def test_torchs_kernels_keep_and_draw_what_float64_does(row: list[float], params: Params, key: int) -> None:
    _check(sample, row, params, key, CPU)


@pytest.mark.parametrize("vocab", [1000, 50_257])
def test_torchs_kernels_agree_with_float64_over_many_tokens(vocab: int) -> None:
    torch.manual_seed(0)
    params = mixed(vocab)
    logits = torch.randn(len(params), vocab) * 3
    rows, positions = rows_of(params, vocab, CPU)
    assert faults(sample(logits, rows, positions), logits, params, rows, positions) == []


def test_on_a_cpu_torchs_kernels_sample() -> None:
    assert choose_sampler(97, CPU) is sample


def _other_token(found: Sampled) -> Sampled:
    return dataclasses.replace(found, tokens=(found.tokens + 1) % 97)


def _other_logprob(found: Sampled) -> Sampled:
    return dataclasses.replace(found, logprobs=found.logprobs + 1e-4)


def _finite(found: Sampled) -> Sampled:
    return dataclasses.replace(found, logprobs=found.logprobs.nan_to_num())


def _one_less(found: Sampled) -> Sampled:
    if found.kept is None:
        return found
    return dataclasses.replace(found, kept=dataclasses.replace(found.kept, counts=found.kept.counts - 1))


@pytest.mark.parametrize("vocab", [2, 23, 97, 1000])
def test_a_sampler_that_samples_the_same_is_found_no_different(vocab: int) -> None:
    def in_other_order(*args: Any) -> Sampled:
        found = sample(*args)
        if found.kept is None:
            return found
        ids = found.kept.ids.int()
        for row, count in zip(ids, found.kept.counts.tolist(), strict=True):
            row[:count] = row[:count].sort().values
        return dataclasses.replace(found, kept=dataclasses.replace(found.kept, ids=ids))

    assert difference(in_other_order, vocab, CPU) is None


@pytest.mark.parametrize(
    ("spoil", "told"),
    [(_other_token, "its tokens"), (_other_logprob, "log-prob"), (_finite, "not numbers"), (_one_less, "other ids")],
)
def test_a_sampler_that_does_not_is_told_and_not_taken(spoil: Any, told: str) -> None:
    what = difference(lambda *args: spoil(sample(*args)), 97, CPU)
    assert what is not None
    assert told in what


def test_memory_that_runs_out_as_they_are_tried_says_nothing_of_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(error: Exception) -> None:
        def sample_fused(*given: Any) -> Sampled:
            raise error

        monkeypatch.setitem(sys.modules, FUSED, SimpleNamespace(sample_fused=sample_fused))  # type: ignore[arg-type]

    monkeypatch.setattr(sampler_choice, "probe", lambda limits, vocab, device: probe(limits, vocab, CPU))
    tried(ValueError("no such kernel"))
    assert choose_sampler(97, CUDA) is sample
    tried(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB"))
    with pytest.raises(torch.OutOfMemoryError, match=r"2\.00 MiB"):
        choose_sampler(97, CUDA)


@pytest.fixture
def fused() -> Sample:
    pytest.importorskip("triton")
    from headrace.engines.embedded.fused_sampling.fused_sampler import sample_fused

    return sample_fused


@pytest.mark.gpu
@on_device
@pytest.mark.parametrize("vocab", [97, 4096, 151_936])
def test_the_kernels_are_taken(vocab: int, fused: Sample) -> None:
    assert difference(fused, vocab, CUDA) is None
    assert choose_sampler(vocab, CUDA) is fused


@pytest.mark.gpu
@on_device
@pytest.mark.parametrize("vocab", [97, 1000, 16_384, 16_385, 50_257, 151_936])
@pytest.mark.parametrize("spread", [0.01, 1.0, 3.0, 10.0])
def test_the_kernels_keep_and_draw_what_float64_does(vocab: int, spread: float, fused: Sample) -> None:
    """Logits as they come, and rounded, so that many are equal; and torch's kernels beside them."""
    torch.manual_seed(0)
    params = mixed(vocab)
    for logits in (torch.randn(len(params), vocab) * spread, (torch.randn(len(params), vocab) * spread).round()):
        rows, positions = rows_of(params, vocab, CUDA)
        for sampler, slack in ((fused, SLACK), (sample, 1e-4)):
            sampled = sampler(logits.to(CUDA), rows, positions)
            assert faults(sampled, logits.to(CUDA), params, rows, positions, slack) == []


@pytest.mark.gpu
@on_device
@settings(deadline=None)
@given(row=BAD_ROWS, params=PARAMS, key=st.integers(0, 2**64 - 2))
def test_the_kernels_agree_on_ties_and_rows_that_are_not_numbers(row: list[float], params: Params, key: int) -> None:
    pytest.importorskip("triton")
    from headrace.engines.embedded.fused_sampling.fused_sampler import sample_fused

    _check(sample_fused, row, params, key, CUDA)


@pytest.mark.gpu
@on_device
def test_a_row_is_sampled_alike_alone_and_among_others_whatever_they_are(fused: Sample) -> None:
    """To the bit: 256 rows, one of them NaN, one infinite, one without any probability."""
    torch.manual_seed(0)
    vocab = 151_936
    params = (mixed(vocab) * 20)[:256]
    logits = torch.randn(256, vocab, device=CUDA) * 3
    logits[5, 7], logits[6, 8], logits[9] = torch.nan, torch.inf, -torch.inf
    rows, positions = rows_of(params, vocab, CUDA)
    together = fused(logits, rows, positions)
    assert together.kept is not None
    for i in (0, 1, 3, 4, 6, 8, 10, 100, 255):
        own, place = rows_of(params[i : i + 1], vocab, CUDA, i)
        alone = fused(logits[i : i + 1], own, place)
        assert alone.tokens.item() == together.tokens[i].item()
        assert alone.logprobs.isfinite().item() == (i not in (5, 6, 9))
        if alone.logprobs.isfinite().item():
            assert alone.logprobs.item() == together.logprobs[i].item()
        if alone.kept is not None:
            count = int(alone.kept.counts[0])
            assert count == together.kept.counts[i].item()
            assert torch.equal(alone.kept.ids[0, :count], together.kept.ids[i, :count])


@pytest.mark.gpu
@on_device
def test_the_kernels_can_be_captured_in_a_graph(fused: Sample) -> None:
    """So nothing in them waits for the device."""
    torch.manual_seed(0)
    vocab = 50_257
    params = mixed(vocab)
    logits = torch.zeros(len(params), vocab, device=CUDA)
    rows, positions = rows_of(params, vocab, CUDA)
    fused(logits, rows, positions)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = fused(logits, rows, positions)
    for _ in range(2):
        logits.copy_(torch.randn(len(params), vocab) * 3)
        positions += 1
        graph.replay()
        assert faults(captured, logits, params, rows, positions) == []
