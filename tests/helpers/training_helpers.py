"""A tiny trainer, rows for it, and a loss with every kind of statistic."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import torch
from devices import DEVICE
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
    Qwen3MoeConfig,
)

from headrace.config.trainer import LRScheduleConfig, OptimizerConfig, TrainerConfig
from headrace.models.packing import MicroBatch, PackRow
from headrace.training.protocol import LossTerms
from headrace.training.trainer import HFTrainer

VOCAB = 61
_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "eos_token_id": 2,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "qwen3": Qwen3Config(**_SHAPE, tie_word_embeddings=True, attention_dropout=0.5),
    "qwen3_moe": Qwen3MoeConfig(
        **_SHAPE, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2, norm_topk_prob=True
    ),
    "llama": LlamaConfig(**_SHAPE, tie_word_embeddings=False),
    "gemma2": Gemma2Config(**_SHAPE, sliding_window=5, query_pre_attn_scalar=8),
    "gpt2": GPT2Config(
        vocab_size=VOCAB, n_positions=128, n_embd=32, n_layer=2, n_head=4, initializer_range=0.2, resid_pdrop=0.5,
        bos_token_id=1, eos_token_id=2,
    ),
}  # fmt: skip
SETTINGS = TrainerConfig(
    optimizer=OptimizerConfig(lr=1e-2, weight_decay=0.1),
    lr_schedule=LRScheduleConfig(kind="cosine", warmup_steps=2, min_ratio=0.1),
    max_grad_norm=0.5,
)


def tiny_model(name: str = "qwen3") -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(copy.deepcopy(CONFIGS[name]), dtype=torch.float32).to(DEVICE)


def make_rows(lengths: list[int], seed: int = 0) -> list[PackRow]:
    """Columns: `weights`, one for each token."""
    rng = np.random.default_rng(seed)
    return [PackRow(rng.integers(0, VOCAB, n), rng.random(n) < 0.7, {"weights": rng.normal(size=n)}) for n in lengths]


def weighted_loss(logprobs: Tensor, micro: MicroBatch) -> LossTerms:
    """- sum of weight x log-prob / number of trained tokens."""
    return LossTerms(
        numerator=-(micro.columns["weights"] * logprobs).sum(),
        denominator=micro.mask.sum(),
        stats={"logprobs": logprobs.detach().sum(), "samples": float(micro.num_samples)},
        maxima={"length": float(max(micro.lengths)), "surprise": (-logprobs.detach()).max()},
    )


def make_trainer(name: str = "qwen3", **options: object) -> HFTrainer:
    settings: dict[str, object] = {"config": SETTINGS, "loss": weighted_loss, "total_steps": 12, **options}
    return HFTrainer(tiny_model(name), **settings)  # type: ignore[arg-type]


def weights(trainer: HFTrainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.tensors()}


def gradients(trainer: HFTrainer) -> dict[str, Tensor]:
    """Their sums so far, in float32, as views."""
    assert trainer._whole is not None
    flat = trainer._whole._flat
    return dict(flat.named(flat.grads))


def state(trainer: HFTrainer, part: str) -> dict[str, Tensor]:
    """`master`, `exp_avg` or `exp_avg_sq` of each parameter, as views."""
    pieces = trainer._weights.state()
    return {name.partition(".")[2]: piece.tensor for name, piece in pieces.items() if name.startswith(f"{part}.")}


def load_plainly(path: Path) -> PreTrainedModel:
    """The folder by transformers alone."""
    return AutoModelForCausalLM.from_pretrained(path, use_safetensors=True).to(DEVICE).eval()
