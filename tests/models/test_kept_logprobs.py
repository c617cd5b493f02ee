"""Log-probs over kept sets: values by a plain computation in float64, and no gradient outside the sets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from models_helpers import tiny_model
from torch import Tensor

from headrace.algorithms.kept_sets import KeptSets
from headrace.models.logprobs import Column, token_columns, token_logprobs, token_logprobs_and_entropy
from headrace.models.packed_lm import PackedLM
from headrace.models.packing import PackRow, pack

COLUMNS: tuple[Column, ...] = ("logprob", "entropy", "whole_entropy", "kept_mass")


def _model(name: str) -> PackedLM:
    return PackedLM(tiny_model(name))


def _rows(vocab: int) -> tuple[list[PackRow], list[list[list[int]]]]:
    """Samples with sets of 1 to all ids, and tokens without one; the sets by sample and token."""
    rng = np.random.default_rng(0)
    rows, sets = [], []
    for length in (9, 4, 13):
        tokens = rng.integers(0, vocab, length)
        mask = np.arange(length) >= 2
        of_tokens = []
        for place, token in enumerate(tokens):
            size = int(rng.choice([0, 1, 3, vocab // 2, vocab])) if mask[place] else 0
            others = [int(i) for i in rng.permutation(vocab) if i != token]
            of_tokens.append([int(token), *others][:size])
        flat = np.array([i for one in of_tokens for i in one], np.int64)
        kept = KeptSets.of(flat, np.array([len(one) for one in of_tokens]), vocab)
        rows.append(PackRow(tokens, mask, kept=kept))
        sets.append(of_tokens)
    return rows, sets


def _plain(name: str, rows: list[PackRow], sets: list[list[list[int]]], temperature: float) -> Tensor:
    """[N, 4] in float64, a token at a time."""
    found = []
    model = tiny_model(name)
    for row, of_tokens in zip(rows, sets, strict=True):
        logits = model(input_ids=torch.from_numpy(row.tokens)[None], use_cache=False).logits[0].double()
        for place, token in enumerate(row.tokens):
            if not row.mask[place]:
                found.append([0.0] * 4)
                continue
            p = torch.softmax(logits[place - 1] / temperature, -1)
            kept = torch.tensor(of_tokens[place] or range(len(p)))
            q = p[kept] / p[kept].sum()
            found.append(
                [
                    float((p[token] / p[kept].sum()).log()),
                    float(-(q * q.log()).sum()),
                    float(-(p * p.log()).sum()),
                    float(p[kept].sum()),
                ]
            )
    return torch.tensor(found, dtype=torch.float64)


@pytest.mark.parametrize("name", ["qwen3", "gemma2", "gpt2"])
@pytest.mark.parametrize("max_logits", [2**26, 300])
@torch.no_grad()
def test_columns_are_those_of_the_cut_policy(name: str, max_logits: int) -> None:
    lm = _model(name)
    rows, sets = _rows(lm.model.config.get_text_config().vocab_size)
    found = token_columns(lm, pack(rows), COLUMNS, 0.7, max_logits=max_logits)
    torch.testing.assert_close(found.double(), _plain(name, rows, sets, 0.7), atol=2e-5, rtol=1e-5)


@torch.no_grad()
def test_without_kept_sets_the_whole_vocabulary_is_kept() -> None:
    lm = _model("qwen3")
    rows, sets = _rows(lm.model.config.vocab_size)
    uncut = [PackRow(row.tokens, row.mask) for row in rows]
    found = token_columns(lm, pack(uncut), COLUMNS, 0.7)
    nothing: list[list[list[int]]] = [[[] for _ in one] for one in sets]
    torch.testing.assert_close(found.double(), _plain("qwen3", uncut, nothing, 0.7), atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(found[:, 0], token_logprobs(lm, pack(uncut), 0.7))


@pytest.mark.parametrize("cut", [True, False], ids=["kept sets", "whole vocabulary"])
@pytest.mark.parametrize("max_logits", [2**26, 300], ids=["at once", "in pieces"])
def test_logprob_and_entropy_and_their_gradients_are_those_of_the_distribution(cut: bool, max_logits: int) -> None:
    """By torch.distributions in float64, a token at a time; under weights on both sides of 1 and of 0."""
    rows, sets = _rows(61)
    micro = pack([PackRow(row.tokens, row.mask, kept=row.kept if cut else None) for row in rows])
    lm = _model("qwen3")
    logprobs, entropies = token_logprobs_and_entropy(lm, micro, 0.7, max_logits=max_logits)

    model = tiny_model("qwen3").double()
    plain = torch.zeros((2, micro.num_tokens), dtype=torch.float64)
    begin = 0
    for row, of_tokens in zip(rows, sets, strict=True):
        logits = model(input_ids=torch.from_numpy(row.tokens)[None], use_cache=False).logits[0]
        for place in row.mask.nonzero()[0]:
            # The token is the first of its set.
            kept = of_tokens[place] if cut and of_tokens[place] else np.roll(np.arange(61), -int(row.tokens[place]))
            policy = torch.distributions.Categorical(logits=logits[place - 1][torch.as_tensor(kept)] / 0.7)
            plain[0, begin + place] = policy.log_prob(torch.tensor(0))
            plain[1, begin + place] = policy.entropy()
        begin += len(row)
    torch.testing.assert_close(torch.stack([logprobs, entropies]).double(), plain, atol=2e-5, rtol=1e-5)

    weights = torch.randn(plain.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (weights[0] * logprobs + weights[1] * entropies).sum().backward()
    (weights * plain).sum().backward()
    for (name, found), expected in zip(lm.model.named_parameters(), model.parameters(), strict=True):
        assert found.grad is not None, name
        assert expected.grad is not None, name
        largest = float(expected.grad.abs().max())
        assert largest > 1e-3, name
        torch.testing.assert_close(found.grad.double(), expected.grad, atol=1e-5 * largest, rtol=1e-4, msg=name)


def test_logits_outside_the_kept_set_get_no_gradient_at_all() -> None:
    lm = _model("qwen3")
    rows, sets = _rows(lm.model.config.vocab_size)
    micro = pack(rows)
    seen: list[Tensor] = []
    head = lm.model.get_output_embeddings()
    head.register_forward_hook(lambda _module, _inputs, logits: (logits.retain_grad(), seen.append(logits))[0])
    columns = token_columns(lm, micro, COLUMNS, 0.7)
    columns[:, :2].square().sum().backward()
    (logits,) = seen
    assert logits.grad is not None
    of_trained = [
        one for row, of_tokens in zip(rows, sets, strict=True) for one, m in zip(of_tokens, row.mask, strict=True) if m
    ]
    assert len(of_trained) == len(logits)
    for gradient, kept in zip(logits.grad, of_trained, strict=True):
        outside = torch.ones(len(gradient), dtype=torch.bool)
        outside[kept or range(len(gradient))] = False
        assert (gradient[outside] == 0).all()
        if len(kept) > 1:
            assert (gradient[~outside] != 0).any()


def test_what_is_recorded_has_no_gradient() -> None:
    lm = _model("qwen3")
    rows, _ = _rows(lm.model.config.vocab_size)
    for part in (pack(rows), pack([PackRow(row.tokens, row.mask) for row in rows])):
        assert not token_columns(lm, part, ("whole_entropy", "kept_mass"), 0.7).requires_grad


@torch.no_grad()
def test_over_a_kept_set_probabilities_add_up_to_one_for_the_policy_and_the_reference() -> None:
    """So the mean of reference / policy over the set is 1, which makes k3 unbiased, and that of k1 is the KL of the two
    cut policies."""
    rng = np.random.default_rng(1)
    prefix, kept = rng.integers(0, 61, 5), rng.permutation(61)[:7]
    sets = KeptSets.of(kept, np.array([0] * 5 + [7]), 61)
    rows = [PackRow(np.append(prefix, last), np.arange(6) == 5, kept=sets) for last in kept]
    policy, reference = (
        token_logprobs(PackedLM(tiny_model("qwen3", seed=seed)), pack(rows), 0.7)[5::6].double() for seed in (0, 1)
    )
    p = policy.exp()
    assert float(p.sum()) == pytest.approx(1, abs=1e-6)
    assert float((p * (reference - policy).exp()).sum()) == pytest.approx(1, abs=1e-6)
    k1 = float((p * (policy - reference)).sum())
    k3 = float((p * (torch.expm1(reference - policy) - (reference - policy))).sum())
    assert k1 == pytest.approx(k3, abs=1e-6)
    assert k1 > 0.01
