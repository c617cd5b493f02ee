"""Settings of verl's `main_ppo`: from its YAML, or from the overrides of a shell script, which is not run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import yaml

from headrace.cli.init.translate import (
    CUT,
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


def _files(value: Any) -> list[str]:
    files = [value] if isinstance(value, str) else list(value)
    if not files or not all(isinstance(file, str) and file for file in files):
        raise Unknown(f"{value!r} names no file")
    return files


def _named(files: Sequence[str]) -> dict[str, str]:
    """Files by name: the last part of each path without its suffix, with the folder's where two are alike."""
    paths = [PurePath(file) for file in files]
    stems = [path.name.partition(".")[0] for path in paths]
    if len(set(stems)) < len(stems):
        stems = [f"{path.parent.name}-{stem}" for path, stem in zip(paths, stems, strict=True)]
    names = [re.sub(r"[^A-Za-z0-9_-]", "-", stem)[:40] for stem in stems]
    if len(set(names)) < len(names):
        names = [f"set-{number}" for number in range(1, len(names) + 1)]
    return dict(zip(names, files, strict=True))


def _train_files(value: Any, settings: Settings) -> Mapping[str, Any]:
    files = _files(value)
    if len(files) == 1:
        return {"data.train": files[0]}
    return {"data.train": [{"path": file, "name": name} for name, file in _named(files).items()]}


def _val_files(value: Any, settings: Settings) -> Mapping[str, Any]:
    files = _files(value)
    if len(files) == 1:
        return {"data.eval": files[0]}
    names = {
        name if name[:1].isalpha() and name != "eval" else f"set-{name}": file for name, file in _named(files).items()
    }
    return {f"evaluation.sets.{name}.data": file for name, file in names.items()}


def _drops(settings: Settings) -> bool:
    return settings.get("data.filter_overlong_prompts") is True


def _truncation(value: Any, settings: Settings) -> Mapping[str, Any]:
    if value not in ("error", "left"):
        return CUT(value, settings)
    if _drops(settings) and value == "left":
        raise Unknown("filter_overlong_prompts is true, which drops them: data.too_long")
    return {} if _drops(settings) else {"data.too_long": {"error": "fail", "left": "truncate_left"}[value]}


def _of_samples(key: str) -> Rule:
    """Where verl's `val_kwargs.do_sample` is false, it decodes greedily whatever is beside it."""

    def rule(value: Any, settings: Settings) -> Mapping[str, Any]:
        if any(name.endswith("val_kwargs.do_sample") and on is False for name, on in settings.items()):
            raise Unknown("val_kwargs.do_sample is false, so it has no effect")
        return {key: value}

    return rule


def _updates(value: Any, settings: Settings) -> Mapping[str, Any]:
    """verl counts the prompts of a mini-batch."""
    batch = settings.get("data.train_batch_size")
    if not isinstance(batch, int):
        raise Unknown("algorithm.updates_per_batch is train_batch_size / ppo_mini_batch_size, and only one is given")
    count = whole(batch / value, "algorithm.updates_per_batch (train_batch_size / ppo_mini_batch_size)")
    return {"algorithm.updates_per_batch": count}


def defaults(settings: Settings) -> Settings:
    """Of verl 0.9.1's `ppo_trainer.yaml`, where the recipe `grpo` or the trainer here has others."""
    actor, mode = "actor_rollout_ref.actor", _loss_mode(settings)
    of_samples = mode in ("geo_mean", "sapo")
    found: dict[str, Any] = {
        "algorithm.adv_estimator": "gae",
        f"{actor}.clip_ratio": 0.2,
        # These two aggregate so whatever the key says.
        f"{actor}.loss_agg_mode": "seq-mean-token-mean" if of_samples else "token-mean",
        f"{actor}.optim.weight_decay": 0.01,
    }
    if mode == "vanilla":
        found[f"{actor}.clip_ratio_c"] = 3.0
    batch, mini = settings.get("data.train_batch_size"), 256
    if isinstance(batch, int) and batch > mini:
        found[f"{actor}.ppo_mini_batch_size"] = mini
    if _is_on(settings, "use_kl_loss"):
        found |= {f"{actor}.kl_loss_coef": 0.001, f"{actor}.kl_loss_type": "low_var_kl"}
    elif _is_on(settings, "use_kl_in_reward"):
        found |= {"algorithm.kl_ctrl.kl_coef": 0.001, "algorithm.kl_penalty": "kl"}
    if settings.get("algorithm.adv_estimator") in (None, "gae"):
        found |= {"algorithm.lam": 1.0, "critic.cliprange_value": 0.5, "critic.optim.weight_decay": 0.01}
    return found


def _loss_mode(settings: Settings) -> Any:
    given = [value for name, value in settings.items() if name.rpartition(".")[2] == "loss_mode"]
    return given[-1] if given else "vanilla"


def _clip(value: Any, settings: Settings) -> Mapping[str, Any]:
    names = {"clip_ratio_low": "algorithm.clip_low", "clip_ratio_high": "algorithm.clip_high"}
    given = {name.rpartition(".")[2] for name in settings}
    return {key: value for name, key in names.items() if name not in given}


def _is_on(settings: Settings, end: str) -> bool:
    return any(value is True for name, value in settings.items() if name.rpartition(".")[2] == end)


def _of_kl(switch: str, then: Rule) -> Rule:
    """What is of the KL in the loss, or of that in the reward: `then` where that is on."""

    def rule(value: Any, settings: Settings) -> Mapping[str, Any]:
        if not _is_on(settings, switch):
            raise Unknown(f"{switch} is not true, so it has no effect")
        if switch != "use_kl_loss" and _is_on(settings, "use_kl_loss"):
            raise Unknown("use_kl_loss is true as well, and there is one KL here: algorithm.kl.place")
        return then(value, settings)

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
    whitened = {"algorithm.whiten": True} if value == "gae" else {}  # always so there
    return {"algorithm.advantage": known[value], **whitened}


def _reward(value: Any, settings: Settings) -> Mapping[str, Any]:
    """verl's signature is one of `reward.style`."""
    path = settings.get("custom_reward_function.path")
    name = settings.get("custom_reward_function.name") or "compute_score"
    if not isinstance(path, str) or not isinstance(name, str):
        raise Unknown("custom_reward_function.path names no file; give reward.function: path.py:function")
    if not path.endswith(".py"):
        raise Unknown(f"{path} is no .py file; give reward.function: path.py:{name} and reward.style: verl")
    place = Path(path).absolute() if "\0" not in path and Path(path).exists() else path
    return {"reward.function": f"{place}:{name}", "reward.style": "verl"}


_ALL_TOKENS = never("an evaluation draws from all tokens")
_KL = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
_LOSSES = {"gspo": "gspo", "geo_mean": "geometric_mean", "cispo": "cispo", "sapo": "sapo"}
_AGGREGATION = {
    "token-mean": "token_mean",
    "seq-mean-token-sum": "sample_sum",
    "seq-mean-token-mean": "sample_mean",
    "seq-mean-token-sum-norm": "constant_length",
}
RULES: Mapping[str, Rule] = {
    "data.train_files": _train_files,
    "data.val_files": _val_files,
    "data.max_prompt_length": same("data.max_prompt_tokens"),
    "data.val_batch_size": never("the held-out prompts are answered all at once, as many as the engine decodes"),
    "data.filter_overlong_prompts": unless(False, one_of("data.too_long", {True: "drop"})),
    "data.truncation": _truncation,
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
    "use_kl_in_reward": unless(False, _of_kl("use_kl_in_reward", one_of("algorithm.kl.place", {True: "reward"}))),
    "kl_loss_coef": _of_kl("use_kl_loss", same("algorithm.kl.coefficient")),
    "kl_ctrl.kl_coef": _of_kl("use_kl_in_reward", same("algorithm.kl.coefficient")),
    "kl_ctrl.type": unless("fixed", never("algorithm.kl.target and algorithm.kl.horizon make the coefficient move")),
    "kl_loss_type": _of_kl("use_kl_loss", one_of("algorithm.kl.estimator", _KL)),
    "kl_penalty": _of_kl("use_kl_in_reward", one_of("algorithm.kl.estimator", _KL)),
    "loss_mode": unless("vanilla", one_of("algorithm.loss", _LOSSES)),
    "critic.optim.weight_decay": same("critic.optimizer.weight_decay"),
    "loss_agg_mode": one_of("algorithm.aggregation", _AGGREGATION),
    "adv_estimator": _advantage,
    "norm_adv_by_std_in_grpo": unless(True, one_of("algorithm.advantage", {False: "mean_only"})),
    "rollout.top_k": unless(-1, same("rollout.sampling.top_k")),
    "val_kwargs.temperature": _of_samples("evaluation.temperature"),
    "val_kwargs.n": _of_samples("evaluation.samples"),
    "val_kwargs.do_sample": unless(
        True, one_of("evaluation.temperature", {False: 0.0}), "evaluation.temperature above 0 samples"
    ),
    "val_kwargs.top_p": unless(1.0, _ALL_TOKENS),
    "val_kwargs.top_k": unless(-1, _ALL_TOKENS),
    "rollout.mode": never("it is of verl's server; async.mode says how far generation runs ahead"),
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
    "custom_reward_function.name": _reward,
    "reward_model.enable": unless(False, never("name the model: reward.model.path")),
    "use_remove_padding": unless(True, never("rows are always packed, without padding")),
    "fsdp_config.param_offload": unless(False, ONE_DEVICE),
    "fsdp_config.optimizer_offload": unless(False, ONE_DEVICE),
    "fsdp_config.fsdp_size": ONE_DEVICE,
}
