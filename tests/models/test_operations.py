"""Operations of a training pass, counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from models_helpers import tiny_model
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen3MoeConfig

from headrace.models.operations import TrainingOperations, matrix_rate
from headrace.models.packed_lm import PackedForward, PackedLM
from headrace.models.packing import MicroBatch, PackRow, pack
from headrace.models.prefixes import SharedPrefixes

LAYER = 8 * 8 + 2 * (8 * 4) + 8 * 8 + 3 * (8 * 12)
"""Numbers of one of `llama`."""


def llama(*, tied: bool = False) -> Any:
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
    return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("tied", [False, True])
def test_products_with_weights_and_attention_three_times(tied: bool) -> None:
    weights = 2 * LAYER + 8 * 20
    # A token attends to itself and those before: 1 + 2 + 3, and 1. Two products, of 2 a number, in 8 numbers a layer.
    attention = 2 * 2 * 2 * 8 * (6 + 1)
    found = TrainingOperations(llama(tied=tied)).of([3, 1])
    assert found == 3 * (2 * weights * 4 + attention)


def test_what_samples_begin_with_counts_once_and_the_output_layer_where_it_is_asked() -> None:
    """The second of two samples of 6 and 7 tokens has but its last two for itself; logits are made of three."""
    attention = 2 * 2 * 2 * 8 * ((1 + 2 + 3 + 4 + 5 + 6) + (6 + 7))
    prefixes = SharedPrefixes.of(np.array([1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 7, 8]), [6, 7])
    found = TrainingOperations(llama()).of([6, 7], prefixes, heads=3)
    assert found == 3 * (2 * (2 * LAYER * (6 + 2) + 8 * 20 * 3) + attention)


def group() -> MicroBatch:
    """Eight samples of a prompt of 10 tokens, with an answer of 3 each."""
    answers = np.arange(20, 44).reshape(8, 3)
    return pack([PackRow(np.concatenate([np.arange(10), own]), np.arange(13) >= 10) for own in answers])


def test_a_group_computes_its_prompt_once() -> None:
    model = tiny_model("qwen3")
    operations, lm = TrainingOperations(model), PackedLM(model)
    micro = group()
    found = operations.computed(lm, micro)
    assert found.tokens == 10 + 8 * 3
    # As one sample of 10 and eight times the last 3 of a sample of 13; logits of the answers alone.
    once = operations.of([10], heads=0) + 8 * (operations.of([13], heads=0) - operations.of([10], heads=0))
    assert found.operations == once + operations.of([0], heads=24)


def test_a_pass_of_each_sample_by_itself_computes_all() -> None:
    """Also where the output layer makes logits of all tokens, since it is no plain one."""
    model = tiny_model("qwen3")
    operations, lm = TrainingOperations(model), PackedLM(model)
    lm.forward_kind = PackedForward.SEPARATE
    found = operations.computed(lm, group())
    assert (found.tokens, found.operations) == (8 * 13, operations.of([13] * 8, heads=24))
    lm.has_plain_head = False
    assert operations.computed(lm, group()).operations == operations.of([13] * 8)


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
