"""Hugging Face's parameters and Megatron-Core's hold the same numbers: names and layout, there and back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from headrace.config import ConfigError
from headrace.training.megatron.names import DecoderNames
from headrace.training.megatron.support import DecoderShape, shape_of

KINDS: dict[str, Callable[..., PreTrainedConfig]] = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}


def outline(kind: str, groups: int, share: int, dim: int, layers: int = 1, *, tied: bool = False) -> PreTrainedConfig:
    return KINDS[kind](
        vocab_size=11,
        hidden_size=2 * groups * share,
        intermediate_size=5,
        num_hidden_layers=layers,
        num_attention_heads=groups * share,
        num_key_value_heads=groups,
        head_dim=dim,
        tie_word_embeddings=tied,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
    )


def fused(names: DecoderNames, theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Megatron's parameters of Hugging Face's."""
    made = {}
    for name in names.megatron:
        # All parts of a parameter together have as many rows as it has.
        wanted = [theirs[part] for part in names.parts_of(name)]
        made[name] = wanted[0].new_full((sum(map(len, wanted)), *wanted[0].shape[1:]), torch.nan)
        names.join(name, theirs, made[name])
    return made


def test_queries_keys_and_values_are_interleaved_by_group() -> None:
    """Megatron-Core's own comment (`SelfAttention.get_query_key_value_tensors`): [ng, (np / ng + 2), hn]. Two groups of
    two queries, heads of one number: q0 q1 k0 v0, q2 q3 k1 v1."""
    names = DecoderNames(DecoderShape(1, heads=4, groups=2, head_dim=1, qkv_bias=True, qk_norm=False, tied=True))
    ours = "model.layers.0.self_attn"
    theirs = {
        f"{ours}.q_proj.bias": torch.tensor([0.0, 1.0, 2.0, 3.0]),
        f"{ours}.k_proj.bias": torch.tensor([10.0, 11.0]),
        f"{ours}.v_proj.bias": torch.tensor([20.0, 21.0]),
        "model.layers.0.mlp.gate_proj.weight": torch.tensor([[1.0], [2.0]]),
        "model.layers.0.mlp.up_proj.weight": torch.tensor([[3.0], [4.0]]),
    }
    bias, gated = torch.zeros(8), torch.zeros(4, 1)
    names.join("decoder.layers.0.self_attention.linear_qkv.bias", theirs, bias)
    names.join("decoder.layers.0.mlp.linear_fc1.weight", theirs, gated)
    assert bias.tolist() == [0, 1, 10, 20, 2, 3, 11, 21]
    assert gated.flatten().tolist() == [1, 2, 3, 4]


@settings(deadline=None, max_examples=30)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    groups=st.integers(1, 4),
    share=st.integers(1, 4),
    half=st.integers(1, 4),
    layers=st.integers(1, 2),
    tied=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_there_and_back_every_bit_is_where_it_was(
    kind: str, groups: int, share: int, half: int, layers: int, tied: bool, dtype: torch.dtype
) -> None:
    """And what is written into views of the parts is what was put together, so that no number is in two parts."""
    config = outline(kind, groups, share, 2 * half, layers, tied=tied)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    generator = torch.Generator().manual_seed(0)
    theirs = {
        name: torch.randn(parameter.shape, generator=generator).to(dtype)
        for name, parameter in model.named_parameters()
    }
    names = DecoderNames(shape_of(config))
    made = fused(names, theirs)
    back = {part: tensor for name in names.megatron for part, tensor in names.split(name, made[name])}
    assert back.keys() == theirs.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in theirs.items())
    assert sum(map(torch.numel, made.values())) == sum(map(torch.numel, theirs.values()))
    again = fused(names, back)
    assert all(torch.equal(again[name], tensor) for name, tensor in made.items())


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (GPT2Config(), "'gpt2'.*llama, qwen2, qwen3"),
        (LlamaConfig(attention_bias=True), "attention_bias is True"),
        (LlamaConfig(mlp_bias=True), "mlp_bias is True"),
        (LlamaConfig(hidden_act="gelu"), "hidden_act is 'gelu'"),
        (
            Qwen2Config(use_sliding_window=True, sliding_window=8, max_window_layers=1),
            r"layer_types is \['sliding_attention'\]",
        ),
        (
            LlamaConfig(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}),
            "rope_type is 'yarn'",
        ),
    ],
    ids=["architecture", "attention bias", "feed-forward bias", "activation", "windows", "rotary"],
)
def test_what_is_not_mapped_is_named(config: PreTrainedConfig, said: str) -> None:
    with pytest.raises(ConfigError, match=f"{said}.*hugging_face"):
        shape_of(config)
