"""Tokens of one row that were sampled at several temperatures: by hand, and against one turn at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from models_helpers import VOCAB, tiny_model
from torch import Tensor

from headrace.algorithms.kept_sets import KeptSets
from headrace.models.logprobs import Column, token_columns
from headrace.models.packed_lm import PackedLM
from headrace.models.packing import PackRow, pack

COLUMNS: tuple[Column, ...] = ("logprob", "entropy", "whole_entropy", "kept_mass")


@dataclass
class SameLogits:
    """Whatever came before, the logits are these."""

    logits: Tensor
    has_plain_head = False
    shared = vocabulary = None

    def all_logits(self, tokens: Tensor, *row: Any) -> Tensor:
        return self.logits.expand(len(tokens), -1)


def test_each_token_is_at_its_own_temperature() -> None:
    """Of logits ln 1, ln 3, ln 5 the third has 5/9 at temperature 1, and 25/35 at 1/2, where they count twice. Of the
    first two alone, which are kept, the second has 9/10 then."""
    lm: Any = SameLogits(torch.tensor([1.0, 3.0, 5.0]).log())
    tokens = np.array([0, 2, 2, 1, 2])
    mask = np.array([False, True, True, True, False])
    temperatures = np.array([0, 1, 0.5, 0.5, 0], np.float32)
    kept = KeptSets.of(np.array([0, 1]), np.array([0, 0, 0, 2, 0]), 3)
    micro = pack([PackRow(tokens, mask, kept=kept, temperatures=temperatures)])
    found = token_columns(lm, micro, ("logprob", "kept_mass"), 7.0)
    assert found[:, 0].tolist() == pytest.approx([0, math.log(5 / 9), math.log(25 / 35), math.log(0.9), 0])
    assert found[:, 1].tolist() == pytest.approx([0, 1, 1, 10 / 35, 0])


@pytest.mark.parametrize("max_logits", [2**26, 300], ids=["at once", "in pieces"])
def test_values_and_gradients_are_those_of_one_turn_at_a_time(max_logits: int) -> None:
    """A turn at 0.7 that is cut, one that is greedy, and one at 1.3; beside a sample of one turn at 2."""
    rng = np.random.default_rng(0)
    tokens, other = rng.integers(3, VOCAB, 17), rng.integers(3, VOCAB, 8)
    place = np.arange(17)
    turns = [((place >= 3) & (place < 8), 0.7), (place >= 12, 1.3)]
    mask, temperatures = turns[0][0] | turns[1][0], np.zeros(17, np.float32)
    for of_turn, temperature in turns:
        temperatures[of_turn] = temperature
    counts = np.where(turns[0][0], 3, 0)
    ids = np.array([(token + i) % VOCAB for token in tokens[turns[0][0]] for i in range(3)])
    kept = KeptSets.of(ids, counts, VOCAB)
    last = np.arange(8) >= 5
    rows = [
        PackRow(tokens, mask, kept=kept, temperatures=temperatures),
        PackRow(other, last, temperatures=np.where(last, 2, 0).astype(np.float32)),
    ]
    weights = torch.randn((25, len(COLUMNS)), generator=torch.Generator().manual_seed(1))

    def gradients(model: Any) -> dict[str, Tensor]:
        return {name: each.grad for name, each in model.named_parameters()}

    whole = tiny_model("qwen3")
    together = token_columns(PackedLM(whole), pack(rows), COLUMNS, max_logits=max_logits)
    (together * weights).sum().backward()

    apart_model = tiny_model("qwen3")
    lm, apart = PackedLM(apart_model), torch.zeros_like(together)
    for of_turn, temperature in turns:
        own = kept if temperature == 0.7 else None
        apart[:17] += token_columns(lm, pack([PackRow(tokens, of_turn, kept=own)]), COLUMNS, temperature)
    apart[17:] += token_columns(lm, pack([PackRow(other, last)]), COLUMNS, 2.0)
    (apart * weights).sum().backward()

    torch.testing.assert_close(together, apart, atol=2e-6, rtol=1e-5)
    expected = gradients(apart_model)
    for name, found in gradients(whole).items():
        torch.testing.assert_close(found, expected[name], atol=1e-5, rtol=1e-4)


def test_a_greedy_token_is_never_in_the_mask_and_all_rows_tell_temperatures_or_none() -> None:
    tokens, mask = np.array([1, 2, 3]), np.array([False, True, True])
    with pytest.raises(ValueError, match="no temperature above 0"):
        PackRow(tokens, mask, temperatures=np.array([0, 1, 0], np.float32))
    with pytest.raises(ValueError, match="temperatures has shape"):
        PackRow(tokens, mask, temperatures=np.array([0, 1], np.float32))
    own = PackRow(tokens, mask, temperatures=np.array([0, 1, 2], np.float32))
    with pytest.raises(ValueError, match="1 of 2 rows have temperatures"):
        pack([own, PackRow(tokens, mask)])
