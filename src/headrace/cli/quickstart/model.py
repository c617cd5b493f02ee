"""A model of Qwen3's architecture, small enough to learn on a laptop, with random weights."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from headrace.cli.quickstart.task import MAX_PROMPT, MAX_RESPONSE
from headrace.cli.quickstart.tokenizer import make_tokenizer
from headrace.models.loading import save_pretrained_folder


def make_model(folder: Path, seed: int) -> None:
    """Write the model and its tokenizer, as `transformers` loads them, into `folder`."""
    tokenizer = make_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_PROMPT + MAX_RESPONSE,
        tie_word_embeddings=True,
        # The usual 0.02 is for wide models: at this width it takes half as many steps again to learn to add.
        initializer_range=0.06,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    save_pretrained_folder(model, tokenizer, folder)
