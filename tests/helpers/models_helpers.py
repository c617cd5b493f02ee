"""Tiny randomly initialised models of several architectures."""

from __future__ import annotations

import copy

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    PhimoeConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

VOCAB = 61
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

CONFIGS: dict[str, PreTrainedConfig] = {
    "qwen3": Qwen3Config(**SHAPE, tie_word_embeddings=True),
    "qwen3_moe": Qwen3MoeConfig(
        **SHAPE, moe_intermediate_size=16, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True
    ),
    "qwen2_moe": Qwen2MoeConfig(
        **SHAPE,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=24,
        num_experts=4,
        num_experts_per_tok=2,
        use_sliding_window=True,
        sliding_window=20,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "phimoe": PhimoeConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2, sliding_window=14),
    "llama": LlamaConfig(**SHAPE, tie_word_embeddings=False),
    "gemma2": Gemma2Config(**SHAPE, sliding_window=5, query_pre_attn_scalar=8),
    "gemma3": Gemma3TextConfig(
        **SHAPE, sliding_window=5, query_pre_attn_scalar=8, layer_types=["sliding_attention", "full_attention"]
    ),
    "gpt2": GPT2Config(
        vocab_size=VOCAB,
        n_positions=128,
        n_embd=32,
        n_layer=2,
        n_head=4,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "mamba": MambaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        state_size=4,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    ),
}


def tiny_model(name: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(copy.deepcopy(CONFIGS[name]), dtype=dtype).eval()


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token per letter: `a` is 3."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789 "
    vocabulary = {"<pad>": 0, "<bos>": 1, "<eos>": 2} | {letter: 3 + i for i, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")
