"""A copy of a model has its identity, however its config is written; another model has not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from headrace.models.config_identity import differences, identity, identity_of
from headrace.models.loading import read_model_config

QWEN3 = {
    "model_type": "qwen3",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
LLAMA = {**QWEN3, "model_type": "llama", "head_dim": 8, "num_key_value_heads": 4}
MISTRAL = {**QWEN3, "model_type": "mistral", "sliding_window": 16}
GEMMA = {**QWEN3, "model_type": "gemma3_text"}
PHI = {**LLAMA, "model_type": "phi3", "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS = {**QWEN3, "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def read(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    (folder / "config.json").write_text(json.dumps(config))
    return identity(read_model_config(folder))


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


@pytest.mark.parametrize(
    ("own", "copy"),
    [
        (
            QWEN3,
            {
                **QWEN3,
                "architectures": ["Qwen3ForTokenClassification"],
                "transformers_version": "4.51.0",
                "_name_or_path": "/elsewhere",
                "torch_dtype": "bfloat16",
                "use_cache": False,
                "attention_dropout": 0.1,
                "initializer_range": 0.5,
                "pad_token_id": 3,
                "eos_token_id": [3, 4],
                "id2label": {"0": "x"},
                "max_position_embeddings": 99,
                "unsloth_version": "2026.1",
            },
        ),
        (QWEN3, {**QWEN3, "attention_bias": False, "hidden_act": "silu", "rms_norm_eps": 1e-6, "sliding_window": 99}),
        (QWEN3, {**QWEN3, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 4}),
        ({**QWEN3, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}, {**QWEN3, "rope_theta": 1000000}),
        (
            {**QWEN3, "rope_parameters": {"rope_theta": 5e5, **YARN, "beta_fast": 32, "partial_rotary_factor": 1.0}},
            {**QWEN3, "rope_theta": 500000, "rope_scaling": {**without(YARN, "rope_type"), "type": "yarn"}},
        ),
        (
            {**LLAMA, "rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2}},
            {**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}},
        ),
        (LLAMA, without(LLAMA, "head_dim", "num_key_value_heads")),
        (LLAMA, {**LLAMA, "head_dim": None, "num_key_value_heads": None, "mlp_bias": False, "pretraining_tp": 2}),
        (
            {**GEMMA, "layer_types": ["sliding_attention", "full_attention"] * 2},
            {**GEMMA, "sliding_window_pattern": 2},
        ),
        (EXPERTS, {**EXPERTS, "output_router_logits": True, "router_aux_loss_coef": 0.5, "mlp_only_layers": None}),
    ],
)
def test_a_copy_is_the_same_model(tmp_path: Path, own: dict[str, Any], copy: dict[str, Any]) -> None:
    found, there = read(tmp_path, own), read(tmp_path, copy)
    assert differences(found, there) == []
    assert differences(there, found) == []


@pytest.mark.parametrize("own", [QWEN3, LLAMA, MISTRAL, GEMMA, PHI, EXPERTS])
def test_so_is_one_that_transformers_saved_again(tmp_path: Path, own: dict[str, Any]) -> None:
    found = read(tmp_path, own)
    for use_diff in (True, False):
        config = AutoConfig.from_pretrained(tmp_path)
        (tmp_path / "config.json").write_text(config.to_json_string(use_diff=use_diff))
        assert identity(read_model_config(tmp_path)) == found


@pytest.mark.parametrize(
    ("own", "changed", "names"),
    [
        (QWEN3, {"attention_bias": True}, ["attention_bias"]),
        (QWEN3, {"hidden_act": "gelu"}, ["hidden_act"]),
        (QWEN3, {"rms_norm_eps": 1e-5}, ["rms_norm_eps"]),
        (QWEN3, {"tie_word_embeddings": True}, ["tie_word_embeddings"]),
        (QWEN3, {"head_dim": 8}, ["head_dim"]),
        (QWEN3, {"num_key_value_heads": 4}, ["num_key_value_heads"]),
        (QWEN3, {"hidden_size": 16, "vocab_size": 65}, ["vocab_size", "hidden_size"]),
        (
            QWEN3,
            {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3},
            ["sliding_window", "layer_types[3]"],
        ),
        (QWEN3, {"rope_theta": 5e5}, ["rope_parameters.rope_theta"]),
        (
            QWEN3,
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            ["rope_parameters.rope_type", "rope_parameters.factor"],
        ),
        (
            {**QWEN3, "rope_parameters": {"rope_theta": 1e4, **YARN}},
            {"rope_parameters": {"rope_theta": 1e4, **YARN, "truncate": False}},
            ["rope_parameters.truncate"],
        ),
        (
            {**LLAMA, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
            {"max_position_embeddings": 99},
            ["max_position_embeddings"],
        ),
        (LLAMA, {"mlp_bias": True}, ["mlp_bias"]),
        (MISTRAL, {"sliding_window": 32}, ["sliding_window"]),
        (MISTRAL, {"sliding_window": None}, ["sliding_window"]),
        (GEMMA, {"query_pre_attn_scalar": 128}, ["query_pre_attn_scalar"]),
        (GEMMA, {"final_logit_softcapping": 30.0}, ["final_logit_softcapping"]),
        (EXPERTS, {"num_experts": 8}, ["num_experts"]),
        (EXPERTS, {"num_experts_per_tok": 1}, ["num_experts_per_tok"]),
        (EXPERTS, {"norm_topk_prob": True}, ["norm_topk_prob"]),
        (EXPERTS, {"mlp_only_layers": [0]}, ["mlp_only_layers"]),
        (EXPERTS, {"head_dim": 8}, ["head_dim"]),
    ],
)
def test_what_another_model_differs_in_is_named(
    tmp_path: Path, own: dict[str, Any], changed: dict[str, Any], names: list[str]
) -> None:
    found = differences(read(tmp_path, own), read(tmp_path, {**own, **changed}))
    assert {each.name.replace("num_local_experts", "num_experts") for each in found} == set(names)


def test_the_kind_of_model_comes_first(tmp_path: Path) -> None:
    found = differences(read(tmp_path, QWEN3), read(tmp_path, LLAMA))
    assert found[0] == ("model_type", "qwen3", "llama")


def test_of_keys_that_one_of_two_lacks_nothing_is_said() -> None:
    """Another version of transformers may know them."""
    assert differences(identity_of({"a": 1, "b": 2}), identity_of({"b": 2, "c": 3})) == []


def test_an_older_transformers_calls_types_of_layers_otherwise() -> None:
    older, newer = {"layer_types": ["mamba", "attention"]}, {"layer_types": ["linear_attention", "full_attention"]}
    assert identity_of(older) == identity_of(newer)
