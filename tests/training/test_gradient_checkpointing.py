"""Models that are noisy in train mode, which transformers checkpoints in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from devices import DEVICE
from training_helpers import SETTINGS, VOCAB, make_rows, weighted_loss
from transformers.modeling_layers import GradientCheckpointingLayer

from headrace.models.packing import pack
from headrace.training.trainer import HFTrainer

ROWS = make_rows([5, 9, 3])
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_BY_HEAD = _SHAPE | {"num_key_value_heads": 4}
_DBRX: dict[str, Any] = {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 128, "vocab_size": VOCAB}
NOISY = {
    "router": lambda: transformers.MixtralConfig(**_SHAPE, router_jitter_noise=0.1),
    "sparse mixer": lambda: transformers.PhimoeConfig(**_SHAPE, router_jitter_noise=0.1, input_jitter_noise=0.1),
    "dropout of the config": lambda: transformers.PersimmonConfig(**_BY_HEAD, attention_dropout=0.5),
    "dropout in a layer": lambda: transformers.DbrxConfig(
        **_DBRX,
        attn_config={"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        ffn_config={"hidden_size": 32, "ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
        resid_pdrop=0.5,
    ),
}


def noisy(kind: str, *, checkpointing: bool) -> HFTrainer:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(NOISY[kind](), dtype=torch.float32).to(DEVICE)
    return HFTrainer(
        model, config=SETTINGS, loss=weighted_loss, total_steps=1, seed=0, gradient_checkpointing=checkpointing
    )


@pytest.mark.parametrize("kind", NOISY)
def test_what_is_computed_again_has_no_noise(kind: str) -> None:
    plain, checkpointed = noisy(kind, checkpointing=False), noisy(kind, checkpointing=True)
    expected, first, second = (trainer.logprobs(pack(ROWS)) for trainer in (plain, checkpointed, checkpointed))
    assert torch.equal(first, second)
    assert torch.equal(first, expected)
    calls: list[int] = []
    layer = next(each for each in checkpointed._model.modules() if isinstance(each, GradientCheckpointingLayer))
    next(layer.children()).register_forward_pre_hook(lambda *given: calls.append(1))
    reports = []
    for trainer in (plain, checkpointed):
        trainer.accumulate(pack(ROWS))
        once = len(calls)
        reports.append(trainer.step())
    assert once in (2, 2 * len(ROWS)), "it was not computed again"
    assert reports[0].grad_norm == pytest.approx(reports[1].grad_norm, rel=1e-6)
