"""`headrace init`: what it writes works, and what it reads of other trainers means the same here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from controller_jobs import make_model
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cli.init import command, trl, verl
from headrace.cli.init.translate import Unreadable, translate
from headrace.cli.main import main
from headrace.config import TrainConfig, load_config
from headrace.config.reading.synonyms import SYNONYMS

Captured = pytest.CaptureFixture[str]
FILES = ["README.md", "config.yaml", "eval.jsonl", "reward.py", "test_reward.py", "train.jsonl"]


def test_what_it_writes_is_a_run_once_there_is_a_model(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "new"
    assert main(["init", str(folder)]) == 0
    assert f"cd {folder}; {sys.executable} -m pytest test_reward.py; " in capsys.readouterr().out
    assert sorted(path.name for path in folder.iterdir()) == FILES
    monkeypatch.chdir(folder)
    assert main(["check", "config.yaml"]) == 2
    assert "model folder 'model' does not exist" in capsys.readouterr().err
    make_model(folder / "model")
    assert main(["check", "config.yaml", "rollout.sampling.max_new_tokens=8"]) == 0
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "test_reward.py"]
    tested = subprocess.run(tests, cwd=folder, capture_output=True, text=True)
    assert "3 passed" in tested.stdout, tested.stdout


def test_where_there_is_no_pytest_how_it_is_installed_is_said(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert main(["init", str(tmp_path / "new")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-1] == f"pytest is not installed: {sys.executable} -m pip install pytest"


def test_nothing_is_ever_overwritten(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "reward.py").write_text("mine")
    (tmp_path / "README.md").write_text("mine")
    assert main(["init", str(tmp_path)]) == 2
    assert f"{tmp_path}/reward.py exists already; give another folder" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "reward.py"]
    (tmp_path / "reward.py").unlink()
    assert main(["init", str(tmp_path)]) == 0
    assert (tmp_path / "README.md").read_text() == "mine"


def translated(tmp_path: Path, capsys: Captured, trainer: str, name: str, text: str) -> tuple[dict[str, Any], str]:
    """The config that is written, and what is printed."""
    (tmp_path / name).write_text(text)
    assert main(["init", str(tmp_path / "out"), "--from", trainer, str(tmp_path / name)]) == 0
    config = tmp_path / "out" / "config.yaml"
    load_config(TrainConfig, config)
    return yaml.safe_load(config.read_text()), capsys.readouterr().out


TRL = {
    "learning_rate": 1e-6,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 4,
    "steps_per_generation": 8,
    "num_generations": 16,
    "num_iterations": 2,
    "max_steps": 400,
    "save_steps": 40,
    "warmup_ratio": 0.1,
    "epsilon": 0.2,
    "loss_type": "dr_grpo",
    "scale_rewards": "none",
    "adam_beta2": 0.95,
    "temperature": 0.9,
    "bf16": True,
    "fp16": False,
    "report_to": ["wandb"],
    "output_dir": "out",
    "use_vllm": True,
    "push_to_hub": True,
    "max_prompt_length": 512,
    "deepspeed": None,
}


@pytest.mark.parametrize("ending", ["yaml", "json", "py"])
def test_the_arguments_of_trl_s_grpo_config(ending: str, tmp_path: Path, capsys: Captured) -> None:
    """By hand: 8 x 8 responses of 16 a prompt are 4 prompts; 8 / 4 updates in 2 epochs are 4 steps a batch."""
    if ending == "py":
        words = ", ".join(f"{name}={value!r}" for name, value in TRL.items())
        text = f"raise SystemExit('it is run')\nargs = trl.GRPOConfig({words}, run_name=name())\n"
        text += "GRPOTrainer('x', model='org/base', args=args)\n"
    else:
        text = json.dumps({**TRL, "model_name_or_path": "org/base"})
    config, out = translated(tmp_path, capsys, "trl", f"settings.{ending}", text)
    assert config["model"] == {"path": "org/base", "dtype": "bfloat16"}
    assert config["rollout"] == {
        "prompts_per_batch": 4,
        "samples_per_prompt": 16,
        "sampling": {"temperature": 0.9},
    }
    assert config["algorithm"] == {
        "updates_per_batch": 2,
        "epochs_per_batch": 2,
        "clip_low": 0.2,
        "clip_high": 0.2,
        "aggregation": "constant_length",
        "advantage": "mean_only",
    }
    assert config["trainer"] == {
        "optimizer": {"lr": 1e-6, "betas": [0.9, 0.95]},
        "batches": 100,
        "lr_schedule": {"warmup_steps": 40, "kind": "linear"},
    }
    assert (config["checkpoint"], config["track"]) == ({"every": 10}, ["wandb"])
    left = out.partition("could not translate")[2]
    assert "output_dir   the folder is an option: headrace train --dir" in left
    assert "use_vllm     the engine is the embedded one" in left
    assert "push_to_hub  nothing here is called so" in left
    assert ("run_name     it is name(), which only running the file would tell" in left) == (ending == "py")
    assert config["data"]["max_prompt_tokens"] == 512
    assert config["data"]["too_long"] == "truncate_left"
    assert "deepspeed" not in out


VERL = """
set -x
HERE=/data
# a.comment=1
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    data.train_files=$HERE/train.jsonl data.val_files="['a','b']" \\
    data.train_batch_size=1024 data.max_response_length=100 \\
    actor_rollout_ref.model.path=org/base \\
    actor_rollout_ref.actor.optim.lr=1e-6 critic.optim.lr=1e-5 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001 \\
    actor_rollout_ref.actor.kl_loss_type=low_var_kl algorithm.kl_ctrl.kl_coef=0.5 \\
    +actor_rollout_ref.actor.clip_ratio=0.2 actor_rollout_ref.actor.clip_ratio_high=0.28 \\
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean \\
    actor_rollout_ref.rollout.n=5 actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.top_k=-1 \\
    trainer.logger='["console","wandb"]' trainer.n_gpus_per_node=8 trainer.save_freq=-1 trainer.test_freq=5 \\
    trainer.experiment_name=$NAME trainer.total_epochs=15 custom_reward_function.path=mine.py $@
"""


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for name, value in settings.items():
        *sections, leaf = name.split(".")
        place = whole
        for section in sections:
            place = place.setdefault(section, {})
        place[leaf] = value
    return whole


@pytest.mark.parametrize("ending", ["sh", "yaml"])
def test_the_settings_of_verl(ending: str, tmp_path: Path, capsys: Captured) -> None:
    text = VERL
    if ending == "yaml":
        found = verl.read(VERL, Path("run.sh"))
        plain = {name: "${oc.env:NAME}" if isinstance(value, Unreadable) else value for name, value in found.items()}
        text = yaml.safe_dump({**nested(plain), "defaults": ["_self_"]})
    config, out = translated(tmp_path, capsys, "verl", f"run.{ending}", text)
    assert config["model"] == {"path": "org/base"}
    assert config["data"] == {"train": "/data/train.jsonl"}
    assert config["rollout"] == {
        "prompts_per_batch": 1024,
        "samples_per_prompt": 5,
        "sampling": {"max_new_tokens": 100},
    }
    assert config["algorithm"] == {
        "advantage": "group_normalized",
        "updates_per_batch": 4,
        "kl": {"place": "loss", "coefficient": 0.001, "estimator": "k3"},
        "clip_low": 0.2,
        "clip_high": 0.28,
        "dual_clip": 3.0,
        "aggregation": "sample_mean",
    }
    assert config["trainer"] == {"optimizer": {"lr": 1e-6, "weight_decay": 0.01}, "epochs": 15}
    assert config["critic"] == {"optimizer": {"lr": 1e-5}}
    assert (config["track"], config["evaluation"]) == (
        ["wandb"],
        {"every": 5, "sets": {"a": {"data": "a"}, "b": {"data": "b"}}},
    )
    assert config["reward"] == {"function": "mine.py:compute_score", "style": "verl"}
    left = out.partition("could not translate 5:")[2]
    for words in (
        "algorithm.kl_ctrl.kl_coef       use_kl_in_reward is not true, so it has no effect",
        "actor_rollout_ref.rollout.name  the engine is the embedded one, in the run's process",
        "trainer.n_gpus_per_node         a run is on one device",
        "trainer.save_freq               the last version is always kept: checkpoint.every",
        "trainer.experiment_name         it is $",
    ):
        assert words in left


def test_a_data_set_of_the_hub_with_its_subset_and_its_split(tmp_path: Path, capsys: Captured) -> None:
    text = "model_name_or_path: a/b\ndataset_name: x/y\ndataset_config: main\ndataset_train_split: train\n"
    config, out = translated(tmp_path, capsys, "trl", "k.yaml", text)
    assert config["data"]["train"] == {"path": "x/y", "subset": "main", "split": "train"}
    assert "dataset_train_split  data.train.split: 'train'" in out


def test_a_subset_of_no_data_set_is_listed(tmp_path: Path, capsys: Captured) -> None:
    config, out = translated(tmp_path, capsys, "trl", "k.yaml", "model_name_or_path: a/b\ndataset_config: main\n")
    assert config["data"]["train"] == "train.jsonl"
    assert (
        "dataset_config  data.train.subset is of one data set, and data.train names none"
        in out.partition("could not")[2]
    )


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(["trl", "verl"]), st.data())
def test_any_value_of_any_setting_is_translated_or_listed(trainer: str, data: st.DataObject) -> None:
    rules = {"trl": trl.RULES, "verl": verl.RULES}[trainer]
    names = st.sampled_from([*rules, *SYNONYMS, "seed", "critic.lr", "", "a..b"])
    found = data.draw(st.dictionaries(names, VALUES, max_size=6))
    defaults = {"trl": trl.defaults, "verl": verl.defaults}[trainer]
    translation, plain = translate(found, rules, defaults), translate(found, rules)
    told = [one.name for one in (*plain.done, *plain.left)]
    assert sorted(told) == sorted(name for name, value in found.items() if value is not None)
    assert {key: translation.values[key] for key in plain.values} == plain.values, "what is given wins"
    assert all(one.words for one in translation.left)


@pytest.mark.parametrize(
    ("trainer", "name", "text", "words"),
    [
        ("verl", "a.yaml", "[1, 2]", "holds no mapping"),
        ("verl", "a.yaml", "a: {", "is no YAML"),
        ("verl", "a.sh", "python train.py", "has no settings of verl"),
        ("verl", "a.sh", "x a.b='1", "cannot be read as a shell script"),
        ("trl", "a.py", "def", "is no Python"),
        ("trl", "a.py", "x = 1", "has no settings of trl"),
        ("trl", "a.json", "{]", "is neither YAML nor JSON"),
        ("trl", "a.yaml", "1", "holds no mapping"),
        ("openrlhf", "a.sh", "", "--from is 'openrlhf'; use trl FILE or verl FILE"),
        ("trl", "", "", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_clear_error(
    trainer: str, name: str, text: str, words: str, tmp_path: Path, capsys: Captured
) -> None:
    if name:
        (tmp_path / name).write_text(text)
    assert main(["init", str(tmp_path / "out"), "--from", trainer, str(tmp_path / name)]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
