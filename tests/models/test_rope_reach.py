"""Rotary embeddings by length: what they make of samples that share a pass, and up to where that is nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from models_helpers import SHAPE, VOCAB
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, Phi3Config, PreTrainedConfig

from headrace.config import ConfigError, EngineConfig
from headrace.engines.embedded.cache_plan import context_limit
from headrace.models.logprobs import token_logprobs
from headrace.models.packed_lm import PackedLM
from headrace.models.packing import PackRow, pack
from headrace.models.rope_reach import positions_of, reach_of

LONG: dict[str, Any] = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}


def phi3() -> Phi3Config:
    shape = {name: value for name, value in SHAPE.items() if name != "head_dim"}
    return Phi3Config(**shape, original_max_position_embeddings=16, rope_parameters={**LONG, "rope_theta": 1e4})


def rope(**given: Any) -> LlamaConfig:
    return LlamaConfig(**SHAPE, rope_parameters={"rope_theta": 1e4, **given})


@torch.no_grad()
def test_log_probs_depend_on_who_shares_the_pass_only_beyond_the_reach() -> None:
    torch.manual_seed(0)
    lm = PackedLM(AutoModelForCausalLM.from_config(phi3()).eval())
    reach = reach_of(lm.model.config)
    assert reach is not None

    def of_first(*lengths: int) -> torch.Tensor:
        rng = np.random.default_rng(0)
        rows = [PackRow(rng.integers(3, VOCAB, n), np.ones(n, dtype=np.bool_)) for n in lengths]
        return token_logprobs(lm, pack(rows), 1.0)[: lengths[0]]

    alone = of_first(10)
    assert torch.allclose(of_first(10, reach.positions), alone, atol=1e-5)
    assert not torch.allclose(of_first(10, reach.positions + 1), alone, atol=1e-3)


@pytest.mark.parametrize(
    ("config", "reach", "positions"),
    [
        (phi3(), ("longrope", 16), 16),
        (rope(rope_type="dynamic", factor=2.0), ("dynamic", 128), 128),
        (rope(rope_type="linear", factor=2.0), None, 128),
        (rope(rope_type="default"), None, 128),
        (Gemma3TextConfig(**SHAPE), None, 128),
    ],
)
def test_the_reach_of_a_config(config: PreTrainedConfig, reach: tuple[str, int] | None, positions: int) -> None:
    assert (reach_of(config), positions_of(config)) == (reach, positions)


def test_a_context_beyond_the_reach_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=r"^engine\.max_context is 128, the model's own limit, and the model's rotary embedding \(rope_type: "
        r"longrope\) is another one beyond 16 positions, .*; set engine\.max_context to 16 or less$",
    ):
        context_limit(phi3(), EngineConfig())
    with pytest.raises(ConfigError, match=r"^engine\.max_context is 17, and the model's rotary"):
        context_limit(phi3(), EngineConfig(max_context=17))
    assert context_limit(phi3(), EngineConfig(max_context=16)) == 16
    assert context_limit(rope(rope_type="dynamic", factor=2.0), EngineConfig()) == 128
