"""`headrace rm` and `headrace dpo`: pairs of responses, and what is learned from them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from controller_jobs import make_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from headrace.cli.main import main
from headrace.config import ConfigError, DPOConfig, RMConfig
from headrace.models.loading import load_tokenizer
from headrace.models.packing import PackRow, pack
from headrace.offline.demonstrations import read_pairs
from headrace.offline.pairs import run_dpo, run_rm
from headrace.offline.trained.of_pairs import preference_model, scoring_model
from headrace.training.layouts.ranks import WHOLE

PAIRS = [
    {"prompt": f"{letter}:", "chosen": letter.upper() * 3, "rejected": letter * (1 + place % 4)}
    for place, letter in enumerate("abcdefgh")
]


@pytest.fixture(scope="module", params=["qwen3", "gpt2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("base") / "model", request.param)


def quiet(step: int, loss: float, tokens_per_s: float) -> None:
    pass


def settings(folder: Path, model: Path, rows: list[Any] = PAIRS, **trainer: object) -> dict[str, Any]:
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "model": {"path": str(model), "device": "cpu"},
        "data": {"train": str(path)},
        "trainer": {"pairs_per_batch": 4, "optimizer": {"lr": 3e-3}, "steps": 30, **trainer},
        "runtime": {"threads": 1},
    }


@torch.no_grad()
def response_logprob(model: Any, tokenizer: Any, prompt: str, response: str) -> float:
    ids = tokenizer(prompt + response, return_tensors="pt")["input_ids"]
    logprobs = model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
    return float(logprobs[len(tokenizer(prompt)["input_ids"]) - 1 :].sum())


def test_dpo_moves_the_policy_towards_the_chosen_responses(tmp_path: Path, model: Path) -> None:
    result = run_dpo(
        DPOConfig.model_validate(settings(tmp_path, model)), tmp_path / "out", report=quiet, now=lambda: 0.0
    )
    assert result.first_loss == pytest.approx(np.log(2), abs=1e-6), "policy and reference are one at the start"
    assert result.last_loss < 0.3
    before, after = (AutoModelForCausalLM.from_pretrained(path).eval() for path in (model, result.model))
    tokenizer = AutoTokenizer.from_pretrained(result.model)
    for row in PAIRS:
        gains = [
            response_logprob(after, tokenizer, row["prompt"], row[side])
            - response_logprob(before, tokenizer, row["prompt"], row[side])
            for side in ("chosen", "rejected")
        ]
        assert gains[0] > gains[1]


def test_a_reward_model_ranks_as_the_pairs_do_and_transformers_loads_it(tmp_path: Path, model: Path) -> None:
    result = run_rm(RMConfig.model_validate(settings(tmp_path, model)), tmp_path / "out", report=quiet, now=lambda: 0.0)
    assert result.first_loss == pytest.approx(np.log(2), abs=1e-6), "the new head scores everything 0"
    assert result.last_loss < 0.3
    classifier = AutoModelForSequenceClassification.from_pretrained(result.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(result.model)

    @torch.no_grad()
    def score(row: dict[str, str], side: str) -> float:
        ids = tokenizer(row["prompt"] + row[side] + tokenizer.eos_token, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            return float(classifier(ids).logits[0, 0])

    assert all(score(row, "chosen") > score(row, "rejected") for row in PAIRS)


def test_any_split_into_micro_batches_gives_the_same_model(tmp_path: Path, model: Path) -> None:
    losses = []
    for number, budget in enumerate((1, 10_000)):
        config = settings(tmp_path, model, max_tokens_per_microbatch=budget, steps=6)
        result = run_dpo(DPOConfig.model_validate(config), tmp_path / str(number), report=quiet, now=lambda: 0.0)
        losses.append(result.last_loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_pairs_are_read_as_prompt_response_and_end(tmp_path: Path, model: Path) -> None:
    config = DPOConfig.model_validate(settings(tmp_path, model))
    pairs = read_pairs(config.data, load_tokenizer(model), end_token_id=0, max_context=96)
    assert [(len(chosen), len(rejected)) for chosen, rejected in pairs[:3]] == [(6, 4), (6, 5), (6, 6)]
    assert pairs[0][0].mask.tolist() == [False, False, True, True, True, True]


@pytest.mark.parametrize("command", ["rm", "dpo"])
def test_a_line_without_one_of_the_two_is_refused(
    tmp_path: Path, model: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    values = settings(tmp_path, model, [*PAIRS, {"prompt": "x:", "chosen": "y"}])
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps(values))
    assert main([command, str(path), "--dir", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "pairs.jsonl" in error
    assert "rejected" in error
    with pytest.raises(ConfigError, match=r"data\.rejected_column"):
        run_dpo(
            DPOConfig.model_validate(settings(tmp_path, model, [{"prompt": "x:", "chosen": "y", "rejected": ""}])),
            tmp_path / "out",
            report=quiet,
            now=lambda: 0.0,
        )


def test_pairs_that_are_alike_are_left_out_and_told(
    tmp_path: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """To DPO and Bradley-Terry they are nothing: the model is that of the other pairs, bit for bit."""
    alike = {"prompt": "z:", "chosen": "ZZ", "rejected": "ZZ"}
    weights = []
    for rows in (PAIRS, [PAIRS[0], alike, *PAIRS[1:], alike]):
        folder = tmp_path / str(len(rows))
        folder.mkdir()
        config = DPOConfig.model_validate(settings(folder, model, rows, steps=5))
        result = run_dpo(config, folder / "out", report=quiet, now=lambda: 0.0)
        weights.append((result.model / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith("in 2 of 10 pairs, first in ")
    assert told.endswith(
        "pairs.jsonl, line 2, the rejected response is the chosen one; they teach nothing, and are left out"
    )


def test_a_loss_of_the_users_own_gets_pairs_that_are_alike(tmp_path: Path, model: Path) -> None:
    """It may not be one of the difference."""
    config = DPOConfig.model_validate(settings(tmp_path, model, [{"prompt": "z:", "chosen": "Z", "rejected": "Z"}]))
    tokenizer = load_tokenizer(model)
    assert len(read_pairs(config.data, tokenizer, end_token_id=0, max_context=96, compares=False)) == 1
    with pytest.raises(ConfigError, match="the rejected response of every pair is the chosen one"):
        read_pairs(config.data, tokenizer, end_token_id=0, max_context=96)


OWN_LOSSES = """
from headrace.algorithms.losses import PairLoss
from headrace.algorithms.segments import add_up

def gain(logprobs, reference, mask, sample_index, pair_index, chosen):
    logprobs.sub_(reference)
    of_samples = add_up(logprobs * mask, sample_index, len(chosen))
    return PairLoss(of_samples[1::2] - of_samples[0::2], {})

def distance(scores, pair_index, chosen):
    scores.mul_(3.0)
    return PairLoss(scores[1::2] - scores[0::2], {})
"""


def test_a_loss_of_the_users_own_may_change_in_place_what_it_is_given(tmp_path: Path) -> None:
    """What is told beside it is of the model's own log-probs and scores."""
    path = tmp_path / "losses.py"
    path.write_text(OWN_LOSSES)
    values, device = settings(tmp_path, make_model(tmp_path / "model", "qwen3")), torch.device("cpu")
    masks = np.arange(6) >= 2, np.arange(4) >= 2
    micro = pack([PackRow(np.arange(len(mask)) + 3, mask, {"reference": -1.0}) for mask in masks])

    dpo = DPOConfig.model_validate({**values, "loss": f"{path}:gain"})
    policy = preference_model(dpo, device, 1, WHOLE)
    chosen, rejected = policy.trainer.logprobs(micro).split([6, 4])
    policy.trainer.accumulate(micro)
    told = policy.trainer.step().stats
    assert told["chosen_logprob"] == pytest.approx(float(chosen.sum()), rel=1e-5)
    assert told["rejected_logprob"] == pytest.approx(float(rejected.sum()), rel=1e-5)
    assert told["reference_chosen_logprob"] == -4
    assert told["chosen_reward"] == pytest.approx(dpo.beta * float(chosen.sum() + 4), rel=1e-4)

    judge = scoring_model(RMConfig.model_validate({**values, "loss": f"{path}:distance"}), device, 1, WHOLE)
    torch.nn.init.constant_(judge.trainer.model.score.bias, 0.5)
    assert judge.measure(micro).stats["chosen_reward"] == pytest.approx(0.5)
