"""Operations of a training pass, counted by hand."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from headrace.models.operations import TrainingOperations, matrix_rate


@pytest.mark.parametrize("tied", [False, True])
def test_products_with_weights_and_attention_three_times(tied: bool) -> None:
    """Hidden 8, two layers, two heads of 4 with one of keys, 12 in the MLP, 20 tokens in the vocabulary."""
    config = LlamaConfig(
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=20,
        tie_word_embeddings=tied,
    )
    layer = 8 * 8 + 2 * (8 * 4) + 8 * 8 + 3 * (8 * 12)
    weights = 2 * layer + 8 * 20
    # A token attends to itself and those before: 1 + 2 + 3, and 1. Two products, of 2 a number, in 8 numbers a layer.
    attention = 2 * 2 * 2 * 8 * (6 + 1)
    found = TrainingOperations(AutoModelForCausalLM.from_config(config)).of([3, 1])
    assert found == 3 * (2 * weights * 4 + attention)


def test_other_architectures_have_their_own_names() -> None:
    config = GPT2Config(n_embd=8, n_layer=1, n_head=2, n_inner=16, vocab_size=20, n_positions=8)
    weights = 8 * 24 + 8 * 8 + 2 * (8 * 16) + 8 * 20
    found = TrainingOperations(AutoModelForCausalLM.from_config(config)).of([1])
    assert found == 3 * (2 * weights + 2 * 2 * 8)


def test_a_rate_is_measured() -> None:
    assert 1e8 < matrix_rate(torch.device("cpu"), torch.float32) < 1e15
