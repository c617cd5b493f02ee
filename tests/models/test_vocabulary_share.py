"""What ranks that share a vocabulary say of its distributions, against one that has all of it, in float64."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch.distributed import HashStore

from headrace.models.entropy import entropy
from headrace.models.parallel.shared_pass import Ranks
from headrace.models.parallel.vocabulary import VocabularyShare
from headrace.weights.gloo import gloo_group

TOKENS, VOCAB, TEMPERATURE = 16, 4099, 0.6
ROUNDED = 2.0**-18
"""Half a unit in the last place of a logsumexp between 64 and 128, as these are: by so much log-probs may be off."""


def logits_of(seed: int) -> Tensor:
    """As far from 0 as those of some models: of a softmax they are the same with any number added."""
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(TOKENS, VOCAB, generator=generator) + 60) / TEMPERATURE


def of_ranks(logits: Tensor, weights: Tensor, count: int) -> tuple[list[Tensor], Tensor]:
    """Each rank's entropies, and the gradient of their weighted sum by the logits, of which each has some columns."""
    store, size = HashStore(), logits.shape[1]

    def of_rank(rank: int, own: Tensor) -> tuple[Tensor, Tensor]:
        own = own.clone().requires_grad_()
        group = gloo_group(store, rank, count, "127.0.0.1", 30.0)
        share = VocabularyShare(Ranks(group, rank, count), size)
        found = share.entropy(own, share.mass(own))
        (gradient,) = torch.autograd.grad((found * weights).sum(), own)
        return found.detach(), gradient

    with ThreadPoolExecutor(count) as pool:
        told = list(pool.map(of_rank, range(count), logits.chunk(count, dim=1)))
    return [found for found, _ in told], torch.cat([gradient for _, gradient in told], dim=1)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_entropies_and_their_gradients_are_as_near_as_log_probs_are(ranks: int) -> None:
    """With log-probs off by d an entropy H is off by d (H + 1) at most: Σ p e^d (ln p + d). As much for other sums."""
    logits = logits_of(0)
    weights = torch.linspace(-1.0, 1.0, TOKENS)
    exact = logits.double().requires_grad_()
    expected = entropy(exact.log_softmax(1))
    (gradient,) = torch.autograd.grad((expected * weights).sum(), exact)
    found, own = of_ranks(logits, weights, ranks)
    assert all(torch.equal(each, found[0]) for each in found)
    assert bool(((found[0] - expected.detach()).abs() < 2 * ROUNDED * (1 + expected)).all())
    assert float((own - gradient).abs().max()) < 2 * ROUNDED * float(gradient.abs().max())


def test_what_cannot_be_chosen_adds_nothing() -> None:
    """Of two tokens that are as likely, one of each rank: ln 2, whatever else is out of the question."""
    logits = torch.tensor([[3.0, -torch.inf, -torch.inf, 3.0]])
    found, gradient = of_ranks(logits, torch.ones(1), 2)
    assert float(found[0]) == pytest.approx(0.6931472, abs=1e-6)
    assert gradient.abs().max() < 1e-6
