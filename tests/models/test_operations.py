"""Operations of a training pass, counted by hand."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen3MoeConfig

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


def test_of_experts_those_count_that_a_token_meets() -> None:
    """Two of five experts of width 6, behind a router of 5 x 8; the first of two layers has a plain MLP of 12."""
    config = Qwen3MoeConfig(
        hidden_size=8,
        intermediate_size=12,
        moe_intermediate_size=6,
        num_experts=5,
        num_experts_per_tok=2,
        mlp_only_layers=[0],
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        vocab_size=20,
    )
    attention = 8 * 8 + 2 * (8 * 4) + 8 * 8
    weights = 2 * attention + 3 * (8 * 12) + 5 * 8 + 2 * 3 * (8 * 6) + 8 * 20
    found = TrainingOperations(AutoModelForCausalLM.from_config(config)).of([1])
    assert found == 3 * (2 * weights + 2 * 2 * 2 * 8)


def test_a_rate_is_measured() -> None:
    assert 1e8 < matrix_rate(torch.device("cpu"), torch.float32) < 1e15
