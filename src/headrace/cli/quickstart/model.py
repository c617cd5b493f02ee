"""A model of Qwen3's architecture with random weights."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from headrace.cli.quickstart.sizes import Size
from headrace.cli.quickstart.tokenizer import make_tokenizer
from headrace.models.loading import save_pretrained_folder


def make_model(folder: Path, seed: int, size: Size) -> None:
    """Write the model and its tokenizer, as `transformers` loads them, into `folder`."""
    shape, context = size.shape, size.max_prompt + size.max_response
    tokenizer = make_tokenizer(context)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        initializer_range=shape.initializer_range,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    save_pretrained_folder(model, tokenizer, folder)
