"""Values: of the state before each token that the policy chose, and of the one that a sample was cut off in."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from models_helpers import CONFIGS, SHAPE, VOCAB
from transformers import (
    AutoModelForTokenClassification,
    GptOssConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3NextConfig,
)

from headrace.models.packed_lm import PackedLM
from headrace.models.packing import PackRow, pack
from headrace.models.values import token_values, values_and_last

ARCHITECTURES = ("qwen3", "gemma2", "gpt2")
_EXPERTS = {"num_experts_per_tok": 1, "attn_implementation": "eager"}
OTHERS: dict[str, PreTrainedConfig] = {
    "qwen3_next": Qwen3NextConfig(
        **SHAPE, **_EXPERTS, num_experts=2, moe_intermediate_size=16, shared_expert_intermediate_size=16,
        layer_types=["linear_attention", "full_attention"], linear_num_value_heads=2, linear_num_key_heads=2,
        linear_key_head_dim=8, linear_value_head_dim=8,
    ),
    "gpt_oss": GptOssConfig(**SHAPE, **_EXPERTS, num_local_experts=2, sliding_window=5),
}  # fmt: skip
"""Whose attention is not the usual one."""


def value_model(name: str) -> PreTrainedModel:
    config = copy.deepcopy((CONFIGS | OTHERS)[name])
    config.num_labels = 1
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForTokenClassification.from_config(config).eval()


def rows() -> list[PackRow]:
    """Samples that begin alike: ended, cut in a turn, cut after an observation, and as long as the model has places."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(3, VOCAB, 4)
    made = []
    for rest, chosen, truncated in ((5, 5, False), (7, 7, True), (9, 5, True), (124, 124, True)):
        tokens = np.concatenate([prompt, rng.integers(3, VOCAB, rest)])
        place = np.arange(len(tokens))
        made.append(PackRow(tokens, (place >= 4) & (place < 4 + chosen), {"truncated": float(truncated)}))
    return made


def alone(model: PreTrainedModel, row: PackRow) -> torch.Tensor:
    """The model's own logits on one sample: entry i is the value of the state after tokens 0 to i."""
    return model(input_ids=torch.as_tensor(row.tokens)[None], use_cache=False).logits[0, :, 0]


@pytest.mark.parametrize("name", ARCHITECTURES)
@torch.no_grad()
def test_the_last_value_is_that_of_the_state_after_all_tokens(name: str) -> None:
    model, samples = value_model(name), rows()
    expected = [alone(model, row) for row in samples]
    lm, micro = PackedLM(model), pack(samples)
    found = values_and_last(lm, micro)
    assert found.shape == (micro.num_tokens, 2)
    assert torch.equal(found[:, 0] != 0, micro.mask)
    torch.testing.assert_close(found[:, 0], token_values(lm, micro), rtol=1e-5, atol=1e-6)
    for row, after, part in zip(samples, expected, found.split(micro.lengths), strict=True):
        before = torch.cat([after.new_zeros(1), after[:-1]]) * torch.as_tensor(row.mask)
        torch.testing.assert_close(part[:, 0], before, rtol=1e-4, atol=1e-5)
        cut_off = float(row.columns["truncated"])
        torch.testing.assert_close(part[-1, 1], after[-1] * cut_off, rtol=1e-4, atol=1e-5)
        assert not part[:-1, 1].any()
    assert expected[1][-1].abs() > 1e-3


@pytest.mark.parametrize("name", ["qwen3", "gemma2", *OTHERS])
@torch.no_grad()
def test_a_new_head_of_0_hides_nothing_of_how_the_model_computes(name: str) -> None:
    """Samples are kept apart, and values not capped as logits may be, also once it has learnt."""
    model = value_model(name)
    for parameter in model.score.parameters():
        parameter.zero_()
    lm = PackedLM(model)
    for parameter in model.score.parameters():
        torch.nn.init.normal_(parameter, std=30.0)
    plain, samples = value_model(name), rows()[:3]
    plain.load_state_dict(model.state_dict())
    found = token_values(lm, pack(samples)).split([len(row.tokens) for row in samples])
    for row, part in zip(samples, found, strict=True):
        after = alone(plain, row)
        before = torch.cat([after.new_zeros(1), after[:-1]]) * torch.as_tensor(row.mask)
        torch.testing.assert_close(part, before, rtol=1e-4, atol=1e-3)
        assert after.abs().max() > 60, "more than a cap of 30 lets through"


def test_where_nothing_was_cut_off_there_is_nothing_to_add() -> None:
    samples = [PackRow(row.tokens, row.mask, {"truncated": 0.0}) for row in rows()]
    assert not values_and_last(PackedLM(value_model("qwen3")), pack(samples))[:, 1].any()
