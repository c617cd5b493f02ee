"""`headrace init --from`: what a file leaves at the other trainer's defaults is trained with these, not with ours."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.cli.main import main
from headrace.config import TrainConfig, load_config

Captured = pytest.CaptureFixture[str]


def init(folder: Path, capsys: Captured, trainer: str, settings: dict[str, Any]) -> tuple[TrainConfig, str]:
    """The config as it counts, and what is printed."""
    (folder / "job.yaml").write_text(yaml.safe_dump(settings))
    assert main(["init", str(folder / "out"), "--from", trainer, str(folder / "job.yaml")]) == 0
    return load_config(TrainConfig, folder / "out" / "config.yaml"), capsys.readouterr().out


def test_grpo_of_verl_with_its_kl_in_the_reward(tmp_path: Path, capsys: Captured) -> None:
    given = {"adv_estimator": "grpo", "use_kl_in_reward": True}
    config, out = init(tmp_path, capsys, "verl", {"algorithm": given})
    kl = config.algorithm.kl
    assert (kl.place, kl.estimator, kl.coefficient) == ("reward", "k1", 0.001)
    assert config.algorithm.aggregation == "token_mean"
    assert (config.algorithm.clip_low, config.algorithm.clip_high, config.algorithm.dual_clip) == (0.2, 0.2, 3.0)
    assert config.trainer.optimizer.weight_decay == 0.01
    assert not config.algorithm.needs_critic
    taken = out.partition("that are not set as verl has them:")[2]
    assert "algorithm.kl_penalty                        algorithm.kl.estimator: 'k1'" in taken


def test_gae_of_verl(tmp_path: Path, capsys: Captured) -> None:
    config, _ = init(tmp_path, capsys, "verl", {"data": {"train_batch_size": 512}})
    algorithm = config.algorithm
    assert (algorithm.advantage, algorithm.whiten, algorithm.lam) == ("gae", True, 1.0)
    assert (config.critic.clip, config.critic.optimizer.weight_decay, config.critic.optimizer.lr) == (0.5, 0.01, 1e-5)
    assert algorithm.updates_per_batch == 2, "512 / 256"


def test_what_is_given_to_verl_wins(tmp_path: Path, capsys: Captured) -> None:
    settings = {
        "algorithm": {"adv_estimator": "gae", "lam": 0.9, "use_kl_in_reward": True, "kl_penalty": "abs"},
        "actor_rollout_ref": {
            "actor": {"kl_loss_type": "low_var_kl", "clip_ratio_high": 0.28, "policy_loss": {"loss_mode": "gspo"}}
        },
        "critic": {"cliprange_value": 0.3},
    }
    config, _ = init(tmp_path, capsys, "verl", settings)
    algorithm = config.algorithm
    assert (algorithm.lam, algorithm.kl.estimator, config.critic.clip) == (0.9, "abs", 0.3)
    assert (algorithm.loss, algorithm.aggregation, algorithm.dual_clip) == ("gspo", "token_mean", None)
    assert (algorithm.clip_low, algorithm.clip_high) == (0.2, 0.28)


def test_two_kls_of_verl_are_one_here(tmp_path: Path, capsys: Captured) -> None:
    actor = {"use_kl_loss": True, "kl_loss_coef": 0.01}
    settings = {"algorithm": {"use_kl_in_reward": True}, "actor_rollout_ref": {"actor": actor}}
    config, out = init(tmp_path, capsys, "verl", settings)
    kl = config.algorithm.kl
    assert (kl.place, kl.estimator, kl.coefficient) == ("loss", "k3", 0.01)
    assert "algorithm.use_kl_in_reward  use_kl_loss is true as well, and there is one KL here" in out


def test_trl_without_a_loss(tmp_path: Path, capsys: Captured) -> None:
    config, out = init(tmp_path, capsys, "trl", {"learning_rate": 1e-6})
    assert config.algorithm.aggregation == "token_mean"
    assert (config.algorithm.clip_low, config.algorithm.clip_high) == (0.2, 0.2)
    assert (config.trainer.lr_schedule.kind, config.trainer.lr_schedule.min_ratio) == ("linear", 0.0)
    assert config.trainer.epochs == 3
    assert "  lr_scheduler_type  trainer.lr_schedule.kind: 'linear'" in out.partition("as trl has them:")[2]
    usual = config.rollout.prompts_per_batch
    assert f"no setting gives these sizes, which are ours: rollout.prompts_per_batch ({usual}; there 1)" in out


def test_what_is_given_to_trl_wins(tmp_path: Path, capsys: Captured) -> None:
    settings = {
        "loss_type": "grpo",
        "lr_scheduler_type": "constant",
        "max_steps": 10,
        "importance_sampling_level": "sequence",
    }
    config, _ = init(tmp_path, capsys, "trl", settings)
    assert (config.algorithm.loss, config.algorithm.aggregation) == ("gspo", "sample_mean")
    assert (config.algorithm.clip_low, config.algorithm.clip_high) == (0.2, 0.2), "its epsilon, not the paper's"
    assert (config.trainer.lr_schedule.kind, config.trainer.epochs, config.trainer.batches) == ("constant", 1, 10)


def test_cispo_of_trl(tmp_path: Path, capsys: Captured) -> None:
    """By hand: its weight is min(ratio, epsilon_high), so 5 at most and with no lower bound."""
    config, out = init(tmp_path, capsys, "trl", {"loss_type": "cispo", "epsilon_high": 5.0, "epsilon": 0.2})
    assert (config.algorithm.loss, config.algorithm.clip_low, config.algorithm.clip_high) == ("cispo", 1.0, 4.0)
    assert "with loss_type cispo only epsilon_high counts" in out.partition("could not translate")[2]
