"""`headrace init --from`: whole jobs of other trainers, of which every setting is translated or listed, and truly."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from controller_jobs import make_model

from headrace.cli.main import main

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a model, rows, and the settings' folder; `~` is it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    make_model(tmp_path / "model")
    for name in ("gsm8k/train", "gsm8k/test", "math/test"):
        file = tmp_path / "data" / f"{name}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"prompt": f"{a}+1=", "answer": str(a + 1), "data_source": "sums"} for a in range(8)]
        rows = [{**row, "reward_model": {"ground_truth": row["answer"]}} for row in rows]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def init(home: Path, capsys: Captured, trainer: str, name: str, text: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The config, and what is said of each setting; `note` has the notes."""
    (home / name).write_text(text)
    assert main(["init", str(home / "out"), "--from", trainer, str(home / name)]) == 0
    out = capsys.readouterr().out
    said: dict[str, str] = {"note": ""}
    for line in out.splitlines():
        if line.startswith("note: "):
            said["note"] += line.removeprefix("note: ") + "\n"
        elif line.startswith("  ") and not line.startswith("  cd "):
            key, _, words = line.strip().partition("  ")
            said[key] = words.strip()
    assert "together they are no config" not in out, out
    return yaml.safe_load((home / "out" / "config.yaml").read_text()), said


OPEN_R1 = """
model_name_or_path: ~/model
model_revision: main
torch_dtype: bfloat16
attn_implementation: flash_attention_2
dataset_name: ~/data/gsm8k/train.jsonl
dataset_prompt_column: prompt
system_prompt: "You think."
bf16: true
use_vllm: true
do_eval: false
gradient_accumulation_steps: 4
gradient_checkpointing: true
gradient_checkpointing_kwargs: {use_reentrant: false}
hub_model_id: a-model
learning_rate: 1.0e-06
log_completions: true
lr_scheduler_type: cosine_with_min_lr
lr_scheduler_kwargs: {min_lr_rate: 0.1}
max_prompt_length: 20
max_completion_length: 16
max_steps: -1
num_generations: 4
num_train_epochs: 1
output_dir: data/out
per_device_train_batch_size: 4
push_to_hub: true
report_to: [wandb]
reward_funcs: [accuracy, format]
reward_weights: [1.0, 0.5]
save_strategy: epoch
save_total_limit: 1
seed: 42
sync_ref_model: false
ref_model_sync_steps: 64
temperature: 0.7
use_peft: true
lora_r: 16
warmup_ratio: 0.1
"""


def test_a_recipe_of_open_r1(home: Path, capsys: Captured) -> None:
    config, said = init(home, capsys, "trl", "recipe.yaml", OPEN_R1)
    assert config["model"] == {"path": "~/model", "dtype": "bfloat16", "gradient_checkpointing": True}
    assert config["data"] == {
        "train": "~/data/gsm8k/train.jsonl",
        "eval": "eval.jsonl",
        "prompt_column": "prompt",
        "template": {"system": "You think."},
        "max_prompt_tokens": 20,
        "too_long": "truncate_left",
    }
    assert config["trainer"] == {
        "optimizer": {"lr": 1e-6},
        "lr_schedule": {"kind": "cosine", "min_ratio": 0.1},
        "epochs": 1,
    }
    assert "reference" not in config
    assert said["max_prompt_length"] == "data.max_prompt_tokens: 20, data.too_long: 'truncate_left'"
    assert said["ref_model_sync_steps"] == "sync_ref_model is not true, so it has no effect"
    assert said["sync_ref_model"] == "is so here without a key"
    assert said["use_peft"].startswith("LORA IS NOT HERE: all weights are trained (full training)")
    assert said["lora_r"].startswith("LORA IS NOT HERE")
    assert said["reward_funcs"].startswith(
        "accuracy is a name of the training script's own; write the function's place"
    )
    assert said["warmup_ratio"].startswith("warm-up is counted in steps")
    for name in ("hub_model_id", "push_to_hub", "attn_implementation", "model_revision"):
        assert said[name] == "nothing here is called so"
    assert set(yaml.safe_load(OPEN_R1)) <= set(said)
    first, *others = said["note"].splitlines()
    assert first.startswith("trl generates and trains in turns, and config.yaml has async.mode: async")
    assert "async.mode: sync, with max_staleness taken out, is on-policy" in first
    assert others == [
        "the reward is that of the reward.py written here: write yours into it",
        "no held-out rows are named: data.eval is the file of examples written here",
    ]
    text = (home / "out" / "config.yaml").read_text()
    assert "# That trainer is synchronous. `mode: sync`, with max_staleness taken out, is on-policy as it is." in text


def test_a_batch_that_is_no_number_is_listed(home: Path, capsys: Captured) -> None:
    text = "per_device_train_batch_size: many\ngradient_accumulation_steps: 4\n"
    config, said = init(home, capsys, "trl", "a.yaml", text)
    assert said["per_device_train_batch_size"] == "per_device_train_batch_size is 'many', which is no number"
    assert said["gradient_accumulation_steps"] == said["per_device_train_batch_size"]
    assert "rollout" not in config


def test_a_generation_batch_is_updated_on_in_steps_of_a_device_s_batch(home: Path, capsys: Captured) -> None:
    """By hand: 64 responses of 8 a prompt are 8 prompts, and 64 / 8 updates of 8 responses each: 800 / 8 batches."""
    text = "per_device_train_batch_size: 8\ngradient_accumulation_steps: 1\ngeneration_batch_size: 64\n"
    text += "num_generations: 8\nmax_steps: 800\nsave_steps: 80\n"
    config, said = init(home, capsys, "trl", "a.yaml", text)
    assert config["rollout"] == {"prompts_per_batch": 8, "samples_per_prompt": 8}
    assert config["algorithm"]["updates_per_batch"] == 8
    assert (config["trainer"]["batches"], config["checkpoint"]["every"]) == (100, 10)
    assert said["generation_batch_size"] == "rollout.prompts_per_batch: 8, algorithm.updates_per_batch: 8"


def test_a_reference_that_is_synced_is_refreshed(home: Path, capsys: Captured) -> None:
    """By hand: 64 optimiser steps are 64 / 2 batches of two."""
    text = "sync_ref_model: true\nref_model_sync_steps: 64\ngradient_accumulation_steps: 4\nsteps_per_generation: 8\n"
    config, said = init(home, capsys, "trl", "a.yaml", text + "beta: 0.04\n")
    assert config["reference"] == {"refresh_every": 32}
    assert said["sync_ref_model"] == "reference.refresh_every: 32"


SCRIPT = """
from datasets import load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

MODEL = "~/model"

def starts_well(completions, **columns):
    return [float(text.startswith("1")) for text in completions]

def is_short(completions, **columns):
    return [-len(text) / 100 for text in completions]

def main():
    dataset = load_dataset("org/sums", "main", split="train")
    dataset = dataset.map(make_conversation)
    held_out = load_dataset("json", data_files="held.jsonl", split="train")
    other = load_dataset("org/other")
    args = GRPOConfig(output_dir="out", num_generations=4, learning_rate=LR, **more)
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=[starts_well, is_short],
        args=args,
        train_dataset=dataset,
        eval_dataset=held_out,
        peft_config=LoraConfig(r=16),
        callbacks=[Callback()],
    )
    trainer.train()

if __name__ == "__main__":
    main()
"""


def test_a_script_of_trl_loses_nothing_without_a_word(home: Path, capsys: Captured) -> None:
    config, said = init(home, capsys, "trl", "grpo.py", SCRIPT)
    assert config["model"] == {"path": "~/model"}
    assert config["data"] == {
        "train": {"path": "org/sums", "subset": "main", "split": "train"},
        "eval": {"path": "held.jsonl"},
    }
    assert config["reward"] == {
        "terms": [
            {"function": f"{home}/grpo.py:starts_well", "style": "trl", "weight": 1.0},
            {"function": f"{home}/grpo.py:is_short", "style": "trl", "weight": 1.0},
        ]
    }
    assert said["learning_rate"] == "it is LR, which only running the file would tell"
    assert said["**more"] == "it is more, which only running the file would tell"
    assert said["dataset.map(make_conversation)"].startswith("train_dataset is changed by it: write the rows")
    assert said["load_dataset('org/other')"] == "nothing tells that it is train_dataset or eval_dataset"
    assert said["peft_config"].startswith("LORA IS NOT HERE")
    assert said["callbacks"] == "it is [Callback()], which nothing here takes"


def test_the_reward_of_a_script_that_trains_when_it_is_loaded_is_listed(home: Path, capsys: Captured) -> None:
    text = SCRIPT.replace('if __name__ == "__main__":\n    main()', "GRPOTrainer(model=MODEL).train()")
    config, said = init(home, capsys, "trl", "grpo.py", text)
    assert said["reward_funcs"].startswith(f"starts_well is in {home}/grpo.py, which trains when it is loaded: move")
    assert config["reward"] == {"function": "reward.py:score"}


def test_a_script_with_rows_of_a_file_is_checked(home: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"""
import sys
def starts_well(completions, **columns):
    return [float(text.startswith("1")) for text in completions]
if __name__ == "__main__":
    rows = load_dataset("json", data_files="{home}/data/gsm8k/train.jsonl")["train"]
    GRPOTrainer("{home}/model", starts_well, GRPOConfig(max_completion_length=8, num_generations=4), rows)
"""
    config, _ = init(home, capsys, "trl", "grpo.py", text)
    assert config["data"]["train"]["path"] == f"{home}/data/gsm8k/train.jsonl"
    monkeypatch.chdir(home / "out")
    assert main(["check", "config.yaml", "data.eval=null"]) == 0, capsys.readouterr().err


VERL = """
data:
  train_files: ~/data/gsm8k/train.jsonl
  val_files: [~/data/gsm8k/test.jsonl, ~/data/math/test.jsonl]
  prompt_key: prompt
  train_batch_size: 8
  max_prompt_length: 20
  max_response_length: 8
  filter_overlong_prompts: true
  truncation: error
actor_rollout_ref:
  model: {path: ~/model, enable_gradient_checkpointing: true, lora_rank: 0}
  actor:
    optim: {lr: 1e-6}
    ppo_mini_batch_size: 8
    use_kl_loss: false
    kl_loss_coef: 0.001
    entropy_coeff: 0
  rollout:
    name: vllm
    mode: async
    n: 4
    val_kwargs: {do_sample: true, n: 4, temperature: 1.0, top_p: 0.7, top_k: -1}
algorithm: {adv_estimator: grpo, use_kl_in_reward: false}
custom_reward_function: {path: ~/mine.py, name: score_sum}
trainer: {total_epochs: 1, save_freq: 20, test_freq: 5, n_gpus_per_node: 1, critic_warmup: 0}
"""


def test_a_config_of_verl_is_checked(home: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "mine.py").write_text(
        "def score_sum(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return float(ground_truth in solution_str)\n"
    )
    config, said = init(home, capsys, "verl", "run.yaml", VERL)
    assert config["data"] == {
        "train": "~/data/gsm8k/train.jsonl",
        "prompt_column": "prompt",
        "max_prompt_tokens": 20,
        "too_long": "drop",
    }
    assert config["evaluation"] == {
        "samples": 4,
        "temperature": 1.0,
        "every": 5,
        "sets": {
            "gsm8k-test": {"data": "~/data/gsm8k/test.jsonl"},
            "math-test": {"data": "~/data/math/test.jsonl"},
        },
    }
    assert config["reward"] == {"function": "~/mine.py:score_sum", "style": "verl"}
    assert "top_p" not in config["rollout"]["sampling"]
    assert said["actor_rollout_ref.rollout.val_kwargs.top_p"] == "an evaluation draws from all tokens"
    assert said["actor_rollout_ref.actor.kl_loss_coef"] == "use_kl_loss is not true, so it has no effect"
    assert said["data.max_prompt_length"] == "data.max_prompt_tokens: 20"
    assert said["data.truncation"] == "is so here without a key"
    assert said["note"].startswith("verl generates and trains in turns")
    monkeypatch.chdir(home / "out")
    assert main(["check", "config.yaml"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "key", "expected"),
    [
        ({"truncation": "left"}, "too_long", "truncate_left"),
        ({"truncation": "error"}, "too_long", "fail"),
        (
            {"truncation": "right"},
            "truncation",
            "prompts are cut on the left alone: data.too_long: truncate_left, or drop",
        ),
        ({"truncation": "left", "filter_overlong_prompts": True}, "too_long", "drop"),
        (
            {"train_files": ["a/train.parquet", "b/train.parquet"]},
            "train",
            [{"path": "a/train.parquet", "name": "a-train"}, {"path": "b/train.parquet", "name": "b-train"}],
        ),
    ],
)
def test_prompts_of_verl(settings: dict[str, Any], key: str, expected: Any, home: Path, capsys: Captured) -> None:
    config, said = init(home, capsys, "verl", "run.yaml", yaml.safe_dump({"data": settings}))
    assert (config["data"].get(key) or said[f"data.{key}"]) == expected


def test_greedy_validation_has_one_answer(home: Path, capsys: Captured) -> None:
    text = "rollout: {val_kwargs: {do_sample: false, n: 4, temperature: 0.6}}"
    config, said = init(home, capsys, "verl", "run.yaml", text)
    assert config["evaluation"] == {"temperature": 0.0}
    assert said["rollout.val_kwargs.n"] == "val_kwargs.do_sample is false, so it has no effect"


def test_a_home_that_nobody_has_is_a_plain_error(home: Path, capsys: Captured) -> None:
    assert main(["init", str(home / "out")]) == 0
    config = str(home / "out" / "config.yaml")
    for override in ("data.train=~nobody-here/train.jsonl", "model.path=~nobody-here/model"):
        paths = [f"model.path={home}/model", f"data.train={home}/data/gsm8k/train.jsonl", override]
        assert main(["check", config, *paths, "data.eval=null"]) == 2
        assert "~nobody-here" in capsys.readouterr().err
