"""Models whose rotary embedding is another one for long samples, of all that are in a pass: where they are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from controller_jobs import CHARACTERS, CONFIGS, make_job, make_model
from transformers import Phi3Config

from headrace.config import ConfigError, SFTConfig, TrainConfig, load_config
from headrace.controller.planning.policy_model import read_policy
from headrace.offline.loop import look_at


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def config() -> Phi3Config:
        factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
        return Phi3Config(
            vocab_size=len(CHARACTERS) + 2,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=96,
            original_max_position_embeddings=16,
            rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, **factors},
            **{"eos_token_id": 0, "pad_token_id": 1, "bos_token_id": None},
        )

    monkeypatch.setitem(CONFIGS, "phi3", config)
    return make_model(tmp_path / "phi3", "phi3")


@pytest.mark.parametrize("role", ["the policy", "its reference"])
def test_a_run_has_a_context_up_to_which_samples_are_computed_alike(role: str, tmp_path: Path, model: Path) -> None:
    job = make_job(tmp_path / "job")
    given = {"the policy": ["model.path"], "its reference": ["algorithm.kl.coefficient=0.1", "reference.model"]}[role]
    given[-1] += f"={model}"
    words = {
        "the policy": r"^engine\.max_context is 96, the model's own limit, and the model's rotary embedding .*; set",
        "its reference": r"^reference\.model is '.*phi3', whose rotary .*, and engine\.max_context is 96; set",
    }[role]
    with pytest.raises(ConfigError, match=words + r".* 16 or less$"):
        read_policy(load_config(TrainConfig, job, given), None)
    assert read_policy(load_config(TrainConfig, job, [*given, "engine.max_context=16"]), None).context == 16


def test_offline_trainers_take_no_longer_samples(tmp_path: Path, model: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = SFTConfig.model_validate({"model": {"path": str(model), "device": "cpu"}, "data": {"train": "t.jsonl"}})
    assert look_at(config, None).max_context == 16
    assert "samples have 16 tokens at most: the model's rotary embedding (rope_type: longrope)" in caplog.text
