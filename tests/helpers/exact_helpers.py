"""Models after supervised fine-tuning, so that their distributions are as peaked as a policy's are."""

from __future__ import annotations

import numpy as np
import torch
import transformers
from devices import DEVICE
from numpy.typing import NDArray
from transformers import PreTrainedModel

VOCAB = 512
_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
ARCHITECTURES = {
    "qwen3": lambda: transformers.Qwen3Config(**_SHAPE, tie_word_embeddings=True),
    "llama": lambda: transformers.LlamaConfig(**_SHAPE, tie_word_embeddings=False),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **_SHAPE,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        query_pre_attn_scalar=16,
    ),
}
"""gemma3 has no fused runner: it goes through the generic one."""


def sentences(count: int, length: int, seed: int = 0) -> NDArray[np.int64]:
    """[count, length]: walks on a fixed random graph of 24 followers a token, with Zipf's law on them."""
    graph = np.random.default_rng(7).integers(0, VOCAB, (VOCAB, 24))
    law = 1 / np.arange(1, 25)
    rng = np.random.default_rng(seed)
    tokens = np.empty((count, length), dtype=np.int64)
    tokens[:, 0] = rng.integers(0, VOCAB, count)
    for place in range(1, length):
        tokens[:, place] = graph[tokens[:, place - 1], rng.choice(24, count, p=law / law.sum())]
    return tokens


def fine_tuned(architecture: str, steps: int = 300) -> PreTrainedModel:
    """After `steps` of SFT on such walks, in float32."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(ARCHITECTURES[architecture](), dtype=torch.float32).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(steps):
        batch = torch.from_numpy(sentences(32, 24, seed=step + 1)).to(DEVICE)
        loss = model(input_ids=batch, labels=batch, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()
