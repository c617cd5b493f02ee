"""A rank of an offline trainer has its own part of the model, from its files to those that come out."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from allocated import Allocated
from controller_jobs import make_model
from safetensors.torch import load_file
from training_helpers import CONFIGS, SETTINGS, weighted_loss
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from headrace.config import DPOConfig, RMConfig, SFTConfig
from headrace.models.loading import load_tokenizer
from headrace.models.parted_files import AT_ONCE
from headrace.models.stored_model import NotInParts, StoredModel
from headrace.offline.trained.of_config import OfflineConfig, model_of
from headrace.offline.trained.reward_model_files import RewardModelFiles
from headrace.training.layouts.ranks import Layout
from headrace.training.replicas import Meeting
from headrace.training.trainer import HFTrainer

CPU = torch.device("cpu")
ROWS = {"sft": {"prompt": "1+1=", "response": "2"}, "rm": {"prompt": "1+1=", "chosen": "2", "rejected": "3"}}
ROWS["dpo"] = ROWS["rm"]
KINDS: dict[str, type[OfflineConfig]] = {"sft": SFTConfig, "rm": RMConfig, "dpo": DPOConfig}


def config_of(name: str, folder: Path) -> Any:
    data = folder / "rows.jsonl"
    data.write_text(json.dumps(ROWS[name]) + "\n")
    model = {"path": str(make_model(folder / "base")), "device": "cpu"}
    return KINDS[name].model_validate({"model": model, "data": {"train": str(data)}})


@pytest.mark.parametrize("name", KINDS)
def test_nothing_of_the_weights_is_there_before_ranks_have_their_parts(tmp_path: Path, name: str) -> None:
    """How it computes is tried with the weights of a module at a time."""
    config = config_of(name, tmp_path)
    with Allocated() as allocated:
        model = model_of(config, CPU, 3, Layout(dp=2, zero=3)).trainer.model
    assert all(one.is_meta for one in model.parameters())
    assert allocated.peak < sum(4 * one.numel() for one in model.parameters()) / 2


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize("name", KINDS)
def test_what_comes_out_is_written_from_where_it_is(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that shares its passes as several would. No tensor is made that has more than a block of one of its own."""
    monkeypatch.setattr("headrace.models.parted_files.AT_ONCE", AT_ONCE >> 14)
    config = config_of(name, tmp_path)
    model_of(config, CPU, 3).export(tmp_path / "whole")
    trained = model_of(config, CPU, 3, Layout(dp=1, zero=3))
    trained.trainer.join(0, Meeting(30.0), 30.0)
    with Allocated() as allocated:
        written = trained.export(tmp_path / "parts")
    trained.trainer._ranks.close()
    assert allocated.peak <= AT_ONCE >> 14
    files = [load_file(tmp_path / each / "model.safetensors") for each in ("parts", "whole")]
    assert files[0].keys() == files[1].keys()
    assert all(torch.equal(files[0][key], one) for key, one in files[1].items())
    assert written.count == written.size == sum(one.nbytes for one in files[1].values())
    configs = [json.loads((tmp_path / each / "config.json").read_text()) for each in ("parts", "whole")]
    assert configs[0] == configs[1]


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_reward_model_is_a_classifier_of_sequences_however_it_is_written(
    tmp_path: Path, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its head has another name in one of them, and a bias, which is left out."""
    config: Any = copy.deepcopy(CONFIGS[architecture])
    config.num_labels, config.pad_token_id = 1, None
    trained = AutoModelForTokenClassification.from_config(config)
    trainer = HFTrainer(trained, config=SETTINGS, loss=weighted_loss, total_steps=1, dtype=torch.bfloat16)
    tokenizer = load_tokenizer(make_model(tmp_path / "base"))
    given = {name: one.detach().bfloat16() for name, one in trained.named_parameters()}
    told = RewardModelFiles(trained, torch.bfloat16, tokenizer).write(trainer, tmp_path / "parts")
    monkeypatch.setattr("headrace.offline.trained.reward_model_files.StoredModel", refused)
    RewardModelFiles(trained, torch.bfloat16, tokenizer).write(trainer, tmp_path / "whole")

    head = given.get("classifier.weight", given.get("score.weight"))
    for folder in (tmp_path / "parts", tmp_path / "whole"):
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        assert model.config.pad_token_id == tokenizer.pad_token_id
        found = dict(model.named_parameters())
        assert torch.equal(found.pop("score.weight").bfloat16(), head)
        assert all(torch.equal(one.bfloat16(), given[name]) for name, one in found.items())
        assert load_tokenizer(folder).pad_token_id == tokenizer.pad_token_id
    written = [load_file(tmp_path / each / "model.safetensors") for each in ("parts", "whole")]
    assert written[0].keys() == written[1].keys()
    assert told.count == told.size == sum(one.nbytes for one in written[1].values())


def refused(*_: object, **__: object) -> StoredModel:
    raise NotInParts


def test_a_reward_model_whose_tokenizer_pads_with_the_end_is_read_at_the_end(tmp_path: Path) -> None:
    """`transformers` takes the last token that is no padding: with the end for that, the one before it."""
    tokenizer = load_tokenizer(make_model(tmp_path / "base"))
    tokenizer.pad_token = tokenizer.eos_token
    for given in (None, tokenizer.eos_token_id):
        config: Any = copy.deepcopy(CONFIGS["llama"])
        config.num_labels, config.pad_token_id = 1, given
        trained = AutoModelForTokenClassification.from_config(config)
        trainer = HFTrainer(trained, config=SETTINGS, loss=weighted_loss, total_steps=1)
        RewardModelFiles(trained, torch.float32, tokenizer).write(trainer, tmp_path / str(given))
        model = AutoModelForSequenceClassification.from_pretrained(tmp_path / str(given))
        tokens = torch.tensor([[5, 6, 7, tokenizer.eos_token_id]])
        last = model.score(model.model(tokens).last_hidden_state[:, -1])
        assert torch.allclose(model(input_ids=tokens).logits, last)
