"""A frozen reward model scores packed samples as transformers scores each alone."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, GPT2Config, LlamaConfig, PreTrainedConfig, Qwen3Config

from headrace.config import ConfigError
from headrace.models.loading import check_reward_model, load_reward_model
from headrace.models.packing import PackRow, pack
from headrace.training.frozen import FrozenRewardModel

SHAPE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "num_labels": 1,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "qwen3": Qwen3Config(**SHAPE),
    "llama": LlamaConfig(**SHAPE),
    "gpt2": GPT2Config(
        eos_token_id=2,
        bos_token_id=1,
        vocab_size=61,
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        initializer_range=0.3,
        num_labels=1,
    ),
}


@pytest.fixture(params=list(CONFIGS))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(CONFIGS[request.param]).save_pretrained(tmp_path / "rm")
    return tmp_path / "rm"


@torch.no_grad()
def test_scores_are_the_classifiers_own(folder: Path) -> None:
    classifier = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    generator = np.random.default_rng(0)
    samples = [generator.integers(0, 61, length) for length in (9, 1, 5, 17)]
    expected = [float(classifier(torch.from_numpy(tokens)[None]).logits[0, 0]) for tokens in samples]
    model = FrozenRewardModel(load_reward_model(folder, dtype=torch.float32, device="cpu"))
    scores = model.scores(pack([PackRow(tokens, np.ones(len(tokens), bool)) for tokens in samples]))
    assert scores.shape == (4,)
    assert scores.tolist() == pytest.approx(expected, abs=1e-5)
    assert max(expected) - min(expected) > 0.01, "they differ"


def test_a_model_of_several_classes_is_no_reward_model(tmp_path: Path) -> None:
    config = Qwen3Config(**{**SHAPE, "num_labels": 3})
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="has 3 classes, and a reward model has one"):
        check_reward_model(tmp_path)


def test_a_model_without_its_head_is_refused(tmp_path: Path) -> None:
    model = AutoModelForSequenceClassification.from_config(CONFIGS["qwen3"])
    weights = {name: tensor for name, tensor in model.state_dict().items() if name != "score.weight"}
    model.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(ConfigError, match=r"lack 1 tensors .*\(score\.weight\)"):
        load_reward_model(tmp_path, dtype=torch.float32, device="cpu")
