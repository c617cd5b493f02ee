"""Settings of verl's `main_ppo`: from its YAML, or from the overrides of a shell script, which is not run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from headrace.cli.init.translate import (
    CONTEXT,
    EMBEDDED,
    IN_TOKENS,
    ONE_DEVICE,
    Rule,
    Settings,
    Unknown,
    Unreadable,
    never,
    one_of,
    same,
    trackers,
    unless,
    whole,
)
from headrace.config import ConfigError

_OVERRIDE = re.compile(r"^[+~]{0,2}([A-Za-z_][\w.]*)=(.*)$", re.DOTALL)
_SET = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(\S*)\s*$")
_VARIABLE = re.compile(r"\$\{?(\w+)(?::-[^}]*)?\}?")


def read(text: str, file: Path) -> dict[str, Any]:
    """By dotted name. Raises ConfigError."""
    if file.suffix in (".yaml", ".yml", ".json"):
        try:
            found = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{file} is no YAML: {' '.join(str(error).split())}") from error
        if not isinstance(found, dict):
            raise ConfigError(f"{file} holds no mapping; give verl's config")
        return dict(_flat(found))
    return _of_script(text, file)


def _flat(section: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if name in ("_target_", "defaults", "hydra"):
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, str) and "${" in value:
            yield f"{prefix}{name}", Unreadable(f"it is {value}, which another key decides")
        else:
            yield f"{prefix}{name}", value


def _of_script(text: str, file: Path) -> dict[str, Any]:
    """`key=value` words of the command, with variables that the script sets to plain text."""
    sets = [one for line in text.splitlines() if (one := _SET.match(line)) is not None]
    variables = {one[1]: one[2].strip("'\"") for one in sets}
    found: dict[str, Any] = {}
    for line in text.replace("\\\n", " ").splitlines():
        if "=" not in line or _SET.match(line):
            continue
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise ConfigError(f"{file} cannot be read as a shell script: {error}, in {line.strip()[:60]!r}") from error
        for word in words:
            override = _OVERRIDE.match(word)
            if override is not None and "." in override[1]:
                found[override[1]] = _value(override[2], variables)
    return found


def _value(text: str, variables: Mapping[str, str]) -> Any:
    whole_text = _VARIABLE.sub(lambda found: variables.get(found[1], found[0]), text)
    if "$" in whole_text:
        return Unreadable(f"it is {text}, which only the shell would tell")
    try:
        return yaml.safe_load(whole_text)
    except yaml.YAMLError:
        return whole_text


def _file(key: str) -> Rule:
    def rule(value: Any, settings: Settings) -> Mapping[str, Any]:
        files = [value] if isinstance(value, str) else list(value)
        if len(files) != 1:
            raise Unknown(f"{key} is one file; join the {len(files)}")
        return {key: str(files[0])}

    return rule


def _updates(value: Any, settings: Settings) -> Mapping[str, Any]:
    """verl counts the prompts of a mini-batch."""
    batch = settings.get("data.train_batch_size")
    if not isinstance(batch, int):
        raise Unknown("algorithm.updates_per_batch is train_batch_size / ppo_mini_batch_size, and only one is given")
    count = whole(batch / value, "algorithm.updates_per_batch (train_batch_size / ppo_mini_batch_size)")
    return {"algorithm.updates_per_batch": count}


def _clip(value: Any, settings: Settings) -> Mapping[str, Any]:
    names = {"clip_ratio_low": "algorithm.clip_low", "clip_ratio_high": "algorithm.clip_high"}
    given = {name.rpartition(".")[2] for name in settings}
    return {key: value for name, key in names.items() if name not in given}


def _is_on(settings: Settings, end: str) -> bool:
    return any(value is True for name, value in settings.items() if name.rpartition(".")[2] == end)


def _coefficient(switch: str) -> Rule:
    def rule(value: Any, settings: Settings) -> Mapping[str, Any]:
        if not _is_on(settings, switch):
            raise Unknown(f"{switch} is not true, so it has no effect")
        return {"algorithm.kl.coefficient": value}

    return rule


def _advantage(value: Any, settings: Settings) -> Mapping[str, Any]:
    by_deviation = all(on is not False for name, on in settings.items() if name.endswith("norm_adv_by_std_in_grpo"))
    known = {
        "grpo": "group_normalized" if by_deviation else "mean_only",
        "gae": "gae",
        "rloo": "leave_one_out",
        "reinforce_plus_plus": "reinforce_plus_plus",
        "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
        "opo": "opo",
    }
    if value not in known:
        raise Unknown(f"there is no advantage {value!r} here; write one: algorithm.advantage: path.py:function")
    return {"algorithm.advantage": known[value]}


def _reward(value: Any, settings: Settings) -> Mapping[str, Any]:
    name = settings.get("custom_reward_function.name", "compute_score")
    raise Unknown(
        f"{value}:{name} takes (data_source, solution_str, ground_truth); write score(response, row) in reward.py"
    )


_KL = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
_AGGREGATION = {"token-mean": "token_mean", "seq-mean-token-sum": "sample_sum", "seq-mean-token-mean": "sample_mean"}
RULES: Mapping[str, Rule] = {
    "data.train_files": _file("data.train"),
    "data.val_files": _file("data.eval"),
    "data.max_prompt_length": CONTEXT,
    "data.val_batch_size": never("the held-out prompts are answered all at once, as many as the engine decodes"),
    "data.filter_overlong_prompts": never("a prompt that does not fit is an error of headrace check"),
    "data.truncation": never("a prompt that does not fit is an error of headrace check"),
    "ppo_mini_batch_size": _updates,
    "ppo_micro_batch_size": IN_TOKENS,
    "ppo_micro_batch_size_per_gpu": IN_TOKENS,
    "log_prob_micro_batch_size": IN_TOKENS,
    "log_prob_micro_batch_size_per_gpu": IN_TOKENS,
    "log_prob_max_token_len_per_gpu": IN_TOKENS,
    "use_dynamic_bsz": unless(True, IN_TOKENS),
    "actor_rollout_ref.actor.optim.lr": same("trainer.optimizer.lr"),
    "actor_rollout_ref.actor.optim.weight_decay": same("trainer.optimizer.weight_decay"),
    "actor_rollout_ref.actor.optim.lr_warmup_steps": unless(-1, same("trainer.lr_schedule.warmup_steps")),
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": unless(
        0, never("warm-up is counted in steps: trainer.lr_schedule.warmup_steps")
    ),
    "critic.optim.lr": same("critic.optimizer.lr"),
    "critic.model.path": same("critic.model"),
    "critic.ppo_max_token_len_per_gpu": same("critic.max_tokens_per_microbatch"),
    "clip_ratio": _clip,
    "use_kl_loss": unless(False, one_of("algorithm.kl.place", {True: "loss"})),
    "use_kl_in_reward": unless(False, one_of("algorithm.kl.place", {True: "reward"})),
    "kl_loss_coef": _coefficient("use_kl_loss"),
    "kl_ctrl.kl_coef": _coefficient("use_kl_in_reward"),
    "kl_ctrl.type": unless("fixed", never("algorithm.kl.target and algorithm.kl.horizon make the coefficient move")),
    "kl_loss_type": one_of("algorithm.kl.estimator", _KL),
    "kl_penalty": one_of("algorithm.kl.estimator", _KL),
    "loss_agg_mode": one_of("algorithm.aggregation", _AGGREGATION),
    "adv_estimator": _advantage,
    "norm_adv_by_std_in_grpo": unless(True, one_of("algorithm.advantage", {False: "mean_only"})),
    "rollout.top_k": unless(-1, same("rollout.sampling.top_k")),
    "rollout.val_kwargs.temperature": same("evaluation.temperature"),
    "rollout.val_kwargs.n": unless(1, never("an evaluation has one answer a prompt")),
    "rollout.val_kwargs.do_sample": never("evaluation.temperature above 0 samples"),
    "rollout.mode": never("async.mode says how far generation runs ahead"),
    "rollout.name": EMBEDDED,
    "rollout.load_format": EMBEDDED,
    "rollout.gpu_memory_utilization": never("the engine's memory is engine.kv_cache_gib, in GiB"),
    "rollout.tensor_model_parallel_size": unless(1, ONE_DEVICE),
    "rollout.enforce_eager": EMBEDDED,
    "rollout.free_cache_engine": EMBEDDED,
    "rollout.enable_chunked_prefill": EMBEDDED,
    "trainer.n_gpus_per_node": unless(1, ONE_DEVICE),
    "trainer.nnodes": unless(1, ONE_DEVICE),
    "trainer.save_freq": unless(-1, same("checkpoint.every"), "the last version is always kept: checkpoint.every"),
    "trainer.test_freq": unless(-1, same("evaluation.every")),
    "trainer.val_before_train": unless(True, never("the held-out prompts are always answered before and after")),
    "trainer.critic_warmup": unless(0, same("critic.warmup_batches")),
    "trainer.logger": trackers,
    "trainer.project_name": never("of a tracker: track: [{type: wandb, project: ...}]"),
    "trainer.experiment_name": never("a run is called as its folder: headrace train --dir"),
    "trainer.default_local_dir": never("the folder is an option: headrace train --dir"),
    "custom_reward_function.path": _reward,
    "custom_reward_function.name": never("see custom_reward_function.path"),
    "reward_model.enable": unless(False, never("name the model: reward.model.path")),
    "use_remove_padding": unless(True, never("rows are always packed, without padding")),
    "fsdp_config.param_offload": unless(False, ONE_DEVICE),
    "fsdp_config.optimizer_offload": unless(False, ONE_DEVICE),
    "fsdp_config.fsdp_size": ONE_DEVICE,
}
