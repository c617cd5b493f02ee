"""Against TRL's functions. Skipped without it: `pip install -e '.[oracle]'`."""

import os
from types import SimpleNamespace

import pytest
import torch
from oracle_helpers import F64, SEEDS, Batch, close

from headrace.algorithms import losses

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
utils = pytest.importorskip("trl.trainer.utils", exc_type=ImportError)
cpo = pytest.importorskip("trl.experimental.cpo", exc_type=ImportError)
distillation = pytest.importorskip("trl.experimental.sdft.loss_utils", exc_type=ImportError)

pytestmark = pytest.mark.parametrize("seed", SEEDS)


def logits(seed: int, rows: int = 9) -> torch.Tensor:
    return torch.randn(rows, 13, generator=torch.Generator().manual_seed(seed), dtype=F64) * 3


def test_entropy(seed: int) -> None:
    x = logits(seed)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    loss = losses.entropy(ours, torch.ones(9, dtype=torch.bool)).per_token
    expected = -utils.entropy_from_logits(theirs)
    close(loss, expected)
    close(*torch.autograd.grad(loss.sum(), ours), *torch.autograd.grad(expected.sum(), theirs))


def test_gradient_of_distillation(seed: int) -> None:
    x, teacher = logits(seed), logits(seed + 100)
    tokens = torch.randint(0, 13, (9,), generator=torch.Generator().manual_seed(seed))
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    rows = torch.arange(9)
    loss = losses.distillation(
        ours.log_softmax(-1)[rows, tokens], teacher.log_softmax(-1)[rows, tokens], torch.ones(9, dtype=torch.bool)
    )
    expected = distillation.compute_sampled_token_self_distillation_loss(
        theirs, teacher, tokens, distillation_alpha=1.0
    )
    close(*torch.autograd.grad(loss.per_token.sum(), ours), *torch.autograd.grad(expected.sum(), theirs))


@pytest.mark.parametrize(("ours", "theirs"), [("dpo", "sigmoid"), ("ipo", "ipo")])
def test_preference(seed: int, ours: str, theirs: str) -> None:
    # CPO's loss is DPO's without a reference: given log-ratios in place of log-probs, it is DPO's.
    batch = Batch.of(seed)
    logprobs, reference = batch.tokens().requires_grad_(), batch.tokens()
    ratios = (batch.padded(logprobs - reference) * batch.padded_mask).sum(-1)
    pairs = torch.tensor([7, 7, 3, 1, 1, 3, 5, 5, 9, 8, 8])
    whole = pairs != 9
    tokens = whole[batch.sample_index]
    chosen = torch.tensor([1, 0, 0, 1, 0, 1, 0, 1, 1, 0, 1], dtype=torch.bool)
    loss = losses.preference(
        logprobs[tokens],
        reference[tokens],
        batch.mask[tokens],
        batch.sample_index[tokens],
        pairs[whole],
        chosen[whole],
        beta=0.3,
        kind=ours,
        label_smoothing=0.1 if ours == "dpo" else 0.0,
    )
    settings = SimpleNamespace(
        beta=0.3, alpha=0.0, loss_type=theirs, label_smoothing=0.1, accelerator=SimpleNamespace(device="cpu")
    )
    first, second = torch.tensor([3, 5, 7, 0, 10]), torch.tensor([4, 2, 6, 1, 9])
    # In the order of the pairs' indices: 1, 3, 5, 7, 8.
    expected, _, _ = cpo.CPOTrainer.cpo_loss(settings, ratios[first], ratios[second])
    close(loss.per_pair, expected)
    mine = torch.autograd.grad(loss.per_pair.sum(), logprobs, retain_graph=True)
    close(*mine, *torch.autograd.grad(expected.sum(), logprobs))
