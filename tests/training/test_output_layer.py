"""What a trainer's pass makes of the output layer's gradient, where logits are too many to be held at once."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from allocated import Allocated
from torch import Tensor
from training_helpers import CONFIGS, gradients, make_rows, make_trainer, weighted_loss
from transformers import AutoModelForCausalLM

from headrace.models.logprobs import token_logprobs
from headrace.models.packing import PackRow, pack
from headrace.training.trainer import HFTrainer

WORDS, WIDTH = 4096, 32
KINDS = {"llama": "lm_head.weight", "qwen3": "model.embed_tokens.weight"}
"""The first has an output layer of its own; the matrix of it."""


def trainer(kind: str, max_logits: int) -> HFTrainer:
    config = copy.deepcopy(CONFIGS[kind])
    config.vocab_size = WORDS
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    outputs = partial(token_logprobs, max_logits=max_logits)
    settings = {"loss": weighted_loss, "dtype": torch.bfloat16, "outputs": outputs}
    return HFTrainer(model, config=make_trainer()._config, total_steps=1, **settings)  # type: ignore[arg-type]


def rows(count: int, length: int) -> list[PackRow]:
    rng = np.random.default_rng(0)
    return [
        PackRow(rng.integers(3, WORDS, length), np.arange(length) > 0, {"weights": np.ones(length)})
        for _ in range(count)
    ]


@pytest.mark.cpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_holds_one_gradient_of_so_large_a_matrix_at_a_time(kind: str) -> None:
    """Of the output layer from two tokens, and of the embedding, one after the other; beside them there is little. Each
    is added to the float32 sums that there are anyway."""
    trained, micro = trainer(kind, 2 * WORDS), pack(rows(1, 16))
    trained.accumulate(micro)
    with Allocated() as allocated:
        trained.accumulate(micro)
    assert 2 * WORDS * WIDTH <= allocated.peak < 1.8 * 2 * WORDS * WIDTH


@pytest.mark.parametrize("kind", KINDS)
def test_sums_over_many_pieces_are_as_near_to_float32_as_over_one(kind: str) -> None:
    """Also where the embedding's gradient goes into the same sum."""
    micro = pack(make_rows([40] * 8))

    def summed(dtype: torch.dtype, max_logits: int) -> Tensor:
        outputs = partial(token_logprobs, max_logits=max_logits)
        trained = make_trainer(kind, dtype=dtype, outputs=outputs)
        trained.accumulate(micro)
        trained.accumulate(micro)
        return gradients(trained)[KINDS[kind]].double()

    exact = summed(torch.float32, 2**26)
    one, many = (float((summed(torch.bfloat16, size) - exact).norm() / exact.norm()) for size in (2**26, 61))
    assert one < 0.1
    assert many <= 1.01 * one
