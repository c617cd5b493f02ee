"""Stages of a model, one after another in one process: what comes out of them is what comes out of the whole."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from devices import DEVICE
from models_helpers import CONFIGS, SHAPE
from transformers import AutoModelForCausalLM, GraniteConfig, LlamaConfig, PreTrainedConfig, PreTrainedModel

from headrace.config import ConfigError
from headrace.models.packed_lm import PackedLM
from headrace.models.parallel.stages import keep_stage

LENGTHS = [7, 4, 1]
TOKENS = torch.arange(1, 13, device=DEVICE)
POSITIONS = torch.cat([torch.arange(length) for length in LENGTHS]).to(DEVICE)


def made(config: PreTrainedConfig, **changes: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    config = type(config)(**{**config.to_dict(), "layer_types": None, **changes})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).to(DEVICE).eval()


@pytest.mark.parametrize("name", ["qwen3", "llama", "gemma2", "gemma3"])
def test_stages_compute_what_the_whole_model_does(name: str) -> None:
    """Of five layers, in two or three stages; parameters keep their names."""
    whole = PackedLM(made(CONFIGS[name], num_hidden_layers=5))
    everywhere = torch.arange(len(TOKENS), device=DEVICE)
    with torch.no_grad():
        expected = whole.head(whole.hidden_states(TOKENS, POSITIONS, LENGTHS, everywhere))
        for stages in (2, 3):
            states, had = None, set()
            for stage in range(stages):
                lm = copy.deepcopy(whole)
                outlines = keep_stage(lm, stage, stages)
                own = {name: tuple(tensor.shape) for name, tensor in lm.model.named_parameters()}
                assert own == {name: each.shape for name, each in outlines.items() if stage in each.stages}
                had |= own.keys()
                with lm.behind(states):
                    if stage < stages - 1:
                        states = lm.carried(TOKENS, POSITIONS, LENGTHS)
                        assert states.shape[1] == lm.carried_tokens(TOKENS, LENGTHS)
                    else:
                        found = lm.head(lm.hidden_states(TOKENS, POSITIONS, LENGTHS, everywhere))
            assert torch.equal(found, expected)
            assert list(outlines) == [name for name, _ in whole.model.named_parameters()]
            assert had == outlines.keys()
            twice = [name for name, each in outlines.items() if len(each.stages) > 1]
            tied = whole.model.config.tie_word_embeddings
            assert twice == (["model.embed_tokens.weight"] if tied else [])


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (CONFIGS["gpt2"], "GPT2LMHeadModel is not made of .* one after another; use pp: 1"),
        (
            GraniteConfig(**SHAPE, embedding_multiplier=3.0),
            "GraniteForCausalLM is not made of .* one after another; use pp: 1",
        ),
        (LlamaConfig(**{**SHAPE, "num_hidden_layers": 1}), "pp 2, and the model has 1 layers; use a pp of 1 at most"),
    ],
    ids=["other parts", "embeddings that are scaled between the parts", "too few layers"],
)
def test_what_cannot_be_cut_so_is_refused_and_stays_as_it_was(config: PreTrainedConfig, words: str) -> None:
    lm = PackedLM(made(config))
    before = [name for name, _ in lm.model.named_parameters()]
    with pytest.raises(ConfigError, match=words):
        keep_stage(lm, 0, 2)
    assert [name for name, _ in lm.model.named_parameters()] == before
