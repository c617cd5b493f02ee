"""What a small model tells of a larger one of its architecture, before that is loaded."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from models_helpers import CONFIGS, SHAPE, tiny_model
from transformers import (
    CohereConfig,
    GraniteConfig,
    LlamaConfig,
    NemotronConfig,
    PhiConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from headrace.config import ConfigError
from headrace.models.packed_lm import PackedForward, PackedLM
from headrace.models.parallel import small_twin
from headrace.models.parallel.shareable import require_shareable
from headrace.models.parallel.small_twin import check_cut
from headrace.models.parallel.stages import require_stages

LARGE = {"vocab_size": 150_000, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
SHARED, STAGES = "computes attention or its output in a way", "is not made of an embedding, layers, a norm and an"


def refusal(check: Any) -> str | None:
    try:
        check()
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", ["qwen3", "qwen3_moe", "llama", "gemma2", "gemma3", "gpt2"])
def test_it_tells_what_the_model_itself_would(name: str) -> None:
    lm, config = PackedLM(tiny_model(name)), CONFIGS[name]
    assert refusal(lambda: check_cut(config, shared=True, stages=1, gives_values=False)) == refusal(
        lambda: require_shareable(lm)
    )
    assert refusal(lambda: check_cut(config, shared=False, stages=2, gives_values=False)) == refusal(
        lambda: require_stages(lm, 2)
    )


@pytest.mark.parametrize(
    ("config", "shared", "staged"),
    [
        (Qwen3Config(**LARGE, head_dim=128, num_hidden_layers=36), None, None),
        (
            Qwen2Config(**{**LARGE, "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584}),
            None,
            None,
        ),
        (LlamaConfig(**LARGE, num_hidden_layers=32, intermediate_size=14336), None, None),
        (CohereConfig(**LARGE, logit_scale=0.0625), SHARED, STAGES),
        (NemotronConfig(**LARGE), SHARED, STAGES),
        (CONFIGS["mamba"], None, None),  # there is no small one; ranks have the last word
        (PhiConfig(**LARGE), None, STAGES),
        (GraniteConfig(**LARGE, embedding_multiplier=12.0), None, STAGES),
        (GraniteConfig(**SHAPE, embedding_multiplier=1.0), None, None),
    ],
    ids=lambda value: value.model_type if isinstance(value, PreTrainedConfig) else "",
)
def test_of_models_of_any_size(config: Any, shared: str | None, staged: str | None) -> None:
    for words, how in ((shared, (True, 1)), (staged, (False, 2))):
        with nullcontext() if words is None else pytest.raises(ConfigError, match=words):
            check_cut(config, shared=how[0], stages=how[1], gives_values=False)


def test_the_small_model_is_built_and_probed_unless_it_is_large_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[PackedLM] = []
    monkeypatch.setattr(small_twin, "require_shareable", probed.append)
    large = Qwen3Config(**LARGE, head_dim=128, num_hidden_layers=36)
    check_cut(large, shared=True, stages=1, gives_values=False)
    (lm,) = probed
    assert (lm.forward_kind, lm.has_plain_head) == (PackedForward.SEGMENTS, True)
    assert lm.model.config.num_hidden_layers == 4
    monkeypatch.setattr(small_twin, "_MOST", lm.model.num_parameters() - 1)
    check_cut(large, shared=True, stages=1, gives_values=False)
    assert len(probed) == 1


def test_why_nothing_is_checked_is_in_the_log_for_whoever_looks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*args: Any) -> Any:
        raise KeyError("hidden_size")

    caplog.set_level("DEBUG", logger=small_twin.__name__)
    with monkeypatch.context() as patch:
        patch.setattr(small_twin, "_shrunk", fails)
        check_cut(CONFIGS["qwen3"], shared=True, stages=1, gives_values=False)
    monkeypatch.setattr(small_twin, "PackedLM", fails)
    check_cut(CONFIGS["qwen3"], shared=True, stages=1, gives_values=False)
    found = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert list(map(repr, found)) == ["KeyError('hidden_size')"] * 2


def test_of_a_critic_and_nobody_s_random_numbers_are_touched() -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    check_cut(CONFIGS["qwen3"], shared=True, stages=2, gives_values=True)
    with pytest.raises(ConfigError, match="GPT2ForTokenClassification"):
        check_cut(CONFIGS["gpt2"], shared=False, stages=2, gives_values=True)
    assert torch.equal(torch.rand(1), expected)
