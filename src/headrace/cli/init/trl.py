"""Settings of TRL's `GRPOConfig`: from YAML, JSON, or the literals of a call in a Python file, which is not run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from headrace.cli.init.translate import (
    EMBEDDED,
    FOLDER,
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
from headrace.cli.init.trl_script import LORA, read_script
from headrace.config import ConfigError

_COMPLETIONS_A_DEVICE, _PER_PROMPT, _SYNC_STEPS = 8, 8, 512
"""TRL's defaults."""


def read(text: str, file: Path) -> dict[str, Any]:
    """Raises ConfigError."""
    if file.suffix == ".py":
        return read_script(text, file)
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is neither YAML nor JSON: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{file} holds no mapping; give the arguments of GRPOConfig")
    return {str(name): value for name, value in found.items()}


def _number(settings: Settings, name: str, default: float) -> float:
    """Raises Unknown for a value that is no number, so that nothing is counted with what it is not."""
    value = settings.get(name)
    if value is None:
        return default
    if isinstance(value, Unreadable):
        raise Unknown(f"it is counted with {name}, and {value.why}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unknown(f"{name} is {value!r}, which is no number")
    return value


def _responses_a_step(settings: Settings) -> float:
    """Of one device."""
    return _number(settings, "per_device_train_batch_size", _COMPLETIONS_A_DEVICE)


def _steps_per_generation(settings: Settings) -> float:
    """Where it is not given: those of the generation batch if that is given, else those of an optimiser step."""
    if settings.get("steps_per_generation") is None and settings.get("generation_batch_size") is not None:
        return _number(settings, "generation_batch_size", 0) / _responses_a_step(settings)
    return _number(settings, "steps_per_generation", _number(settings, "gradient_accumulation_steps", 1))


def _batch(value: Any, settings: Settings) -> Mapping[str, Any]:
    """TRL counts responses; here a batch is counted in prompts."""
    made = _responses_a_step(settings) * _steps_per_generation(settings)
    responses = _number(settings, "generation_batch_size", made)
    prompts = responses / _number(settings, "num_generations", _PER_PROMPT)
    return {"rollout.prompts_per_batch": whole(prompts, "rollout.prompts_per_batch (responses / num_generations)")}


def _updates(settings: Settings) -> float:
    return _steps_per_generation(settings) / _number(settings, "gradient_accumulation_steps", 1)


def _updates_rule(value: Any, settings: Settings) -> Mapping[str, Any]:
    count = whole(_updates(settings), "algorithm.updates_per_batch")
    return {**_batch(value, settings), **({"algorithm.updates_per_batch": count} if count > 1 else {})}


def _batches(key: str) -> Rule:
    """TRL counts optimiser steps."""

    def rule(value: Any, settings: Settings) -> Mapping[str, Any]:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Unknown(f"{value!r} is no number of steps")
        steps_a_batch = _updates(settings) * _number(settings, "num_iterations", 1)
        return {key: whole(value / steps_a_batch, f"{key} (steps / steps a batch)")}

    return rule


def defaults(settings: Settings) -> Settings:
    """Of TRL 1.16.0's `GRPOConfig`, with what it has of transformers' `TrainingArguments`, where the recipe `grpo` or
    the trainer here has others."""
    found: dict[str, Any] = {"loss_type": "dapo", "lr_scheduler_type": "linear"}
    if not isinstance(loss := settings.get("loss_type"), str) or loss not in ("cispo", "sapo"):
        found["epsilon"] = 0.2
    if settings.get("max_steps") in (None, -1):
        found["num_train_epochs"] = 3
    return found


def _epsilon(value: Any, settings: Settings) -> Mapping[str, Any]:
    if settings.get("loss_type") == "cispo":
        raise Unknown("with loss_type cispo only epsilon_high counts: algorithm.clip_high")
    high = {} if settings.get("epsilon_high") is not None else {"algorithm.clip_high": value}
    return {"algorithm.clip_low": value, **high}


def _epsilon_high(value: Any, settings: Settings) -> Mapping[str, Any]:
    """With `cispo` the weight is at most this; else the ratio is clipped at 1 + this."""
    if settings.get("loss_type") == "cispo":
        return {"algorithm.clip_high": _number(settings, "epsilon_high", 0) - 1}
    return {"algorithm.clip_high": value}


def _betas(value: Any, settings: Settings) -> Mapping[str, Any]:
    first, second = _number(settings, "adam_beta1", 0.9), _number(settings, "adam_beta2", 0.999)
    return {"trainer.optimizer.betas": [first, second]}


def _loss(value: Any, settings: Settings) -> Mapping[str, Any]:
    known: dict[str, dict[str, Any]] = {
        "grpo": {"algorithm.aggregation": "sample_mean"},
        "bnpo": {"algorithm.aggregation": "token_mean"},
        "dapo": {"algorithm.aggregation": "token_mean"},
        "dr_grpo": {"algorithm.aggregation": "constant_length"},
        "cispo": {"algorithm.loss": "cispo", "algorithm.clip_low": 1.0, "algorithm.aggregation": "token_mean"},
        "sapo": {"algorithm.loss": "sapo", "algorithm.aggregation": "sample_mean"},
    }
    if value not in known:
        raise Unknown(f"there is no loss {value!r} here; algorithm.loss and algorithm.aggregation are nearest")
    return known[value]


def _warmup(value: Any, settings: Settings) -> Mapping[str, Any]:
    steps = _number(settings, "max_steps", -1)
    if not value:
        return {}
    if steps < 1:
        raise Unknown("warm-up is counted in steps, trainer.lr_schedule.warmup_steps, and max_steps is not given")
    return {"trainer.lr_schedule.warmup_steps": round(value * steps)}


def _reference(value: Any, settings: Settings) -> Mapping[str, Any]:
    """TRL counts optimiser steps, and syncs only where `sync_ref_model` says so."""
    if settings.get("sync_ref_model") is not True:
        raise Unknown("sync_ref_model is not true, so it has no effect")
    steps = _number(settings, "ref_model_sync_steps", _SYNC_STEPS)
    return _batches("reference.refresh_every")(steps, settings)


def _schedule(value: Any, settings: Settings) -> Mapping[str, Any]:
    return {"trainer.lr_schedule.kind": "cosine" if value == "cosine_with_min_lr" else value}


def _schedule_words(value: Any, settings: Settings) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or set(value) != {"min_lr_rate"}:
        raise Unknown("of these only min_lr_rate is there: trainer.lr_schedule.min_ratio")
    return {"trainer.lr_schedule.min_ratio": value["min_lr_rate"]}


def _rewards(value: Any, settings: Settings) -> Mapping[str, Any]:
    """Functions of TRL's signature by place, or import path; or one reward model."""
    names = list(value) if isinstance(value, list | tuple) else [value]
    if not names or not all(isinstance(name, str) for name in names):
        raise Unknown(f"{value!r} names no functions; give reward.terms, each path.py:function and style: trl")
    if len(names) == 1 and "/" in names[0] and ".py:" not in names[0]:
        return {"reward.model.path": names[0]}
    terms = [{"function": _function(name), "style": "trl"} for name in names]
    if len(terms) == 1:
        return {"reward.function": terms[0]["function"], "reward.style": "trl"}
    weights = settings.get("reward_weights")
    weights = [1.0] * len(terms) if weights is None else weights
    if not isinstance(weights, list | tuple) or len(weights) != len(terms):
        raise Unknown(f"there are {len(terms)} functions, and reward_weights has no number for each")
    return {"reward.terms": [{**term, "weight": weight} for term, weight in zip(terms, weights, strict=True)]}


def _function(name: str) -> str:
    if ".py:" in name:
        return name
    module, _, function = name.rpartition(".")
    if not module or not name.replace(".", "_").isidentifier():
        raise Unknown(
            f"{name} is a name of the training script's own; write the function's place: reward.function: "
            "path.py:function (or reward.terms) and reward.style: trl"
        )
    return f"{module}:{function}"


def _weights(value: Any, settings: Settings) -> Mapping[str, Any]:
    rewards = settings.get("reward_funcs")
    if rewards is None or isinstance(rewards, Unreadable):
        raise Unknown("it goes with reward_funcs: the weights are those of reward.terms")
    names = rewards if isinstance(rewards, list | tuple) else [rewards]
    if len(names) == 1:
        raise Unknown("of one reward: reward.terms, with a weight")
    return _rewards(rewards, settings)


def _held_out(value: Any, settings: Settings) -> Mapping[str, Any]:
    if settings.get("eval_strategy") in (None, "no", False):
        raise Unknown("eval_strategy is no, so it has no effect")
    if not isinstance(name := settings.get("dataset_name"), str):
        raise Unknown("data.eval is a data set and its split, and none is named")
    subset = settings.get("dataset_config")
    return {"data.eval": {"path": name, "split": value, **({"subset": subset} if isinstance(subset, str) else {})}}


def _lora_word(value: Any, settings: Settings) -> Mapping[str, Any]:
    raise Unknown("it has no effect without use_peft" if settings.get("use_peft") is not True else LORA)


_ALWAYS = never("is always so: every batch is recorded")
_SCALES = {
    True: "group_normalized",
    "group": "group_normalized",
    False: "mean_only",
    "none": "mean_only",
    "batch": "batch_normalized",
}
RULES: Mapping[str, Rule] = {
    "per_device_train_batch_size": _batch,
    "gradient_accumulation_steps": _batch,
    "steps_per_generation": _updates_rule,
    "generation_batch_size": _updates_rule,
    "max_steps": unless(-1, _batches("trainer.batches")),
    "save_steps": _batches("checkpoint.every"),
    "eval_steps": _batches("evaluation.every"),
    "max_prompt_length": lambda value, settings: {"data.max_prompt_tokens": value, "data.too_long": "truncate_left"},
    "bf16": unless(False, one_of("model.dtype", {True: "bfloat16"})),
    "fp16": unless(False, never("there is no float16 here; model.dtype: bfloat16 has the same size")),
    "epsilon": _epsilon,
    "epsilon_high": _epsilon_high,
    "loss_type": _loss,
    "scale_rewards": one_of("algorithm.advantage", _SCALES),
    "importance_sampling_level": unless("token", one_of("algorithm.loss", {"sequence": "gspo"})),
    "top_k": unless(-1, same("rollout.sampling.top_k")),
    "lr_scheduler_type": unless("constant_with_warmup", _schedule),
    "lr_scheduler_kwargs": _schedule_words,
    "warmup_ratio": _warmup,
    "adam_beta1": _betas,
    "adam_beta2": _betas,
    "report_to": trackers,
    "mask_truncated_completions": unless(False, one_of("algorithm.truncated", {True: "mask"})),
    "sync_ref_model": unless(False, _reference),
    "ref_model_sync_steps": _reference,
    "ref_model_mixup_alpha": unless(1.0, never("the reference becomes the policy whole: reference.refresh_every")),
    "reward_weights": _weights,
    "reward_funcs": _rewards,
    "reward_model_name_or_path": same("reward.model.path"),
    "dataset_test_split": _held_out,
    "train_dataset": same("data.train"),
    "eval_dataset": same("data.eval"),
    "dataset_prompt_column": same("data.prompt_column"),
    "peft_config": never(LORA),
    "use_peft": unless(False, never(LORA)),
    **dict.fromkeys(("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_task_type"), _lora_word),
    **dict.fromkeys(("load_in_4bit", "load_in_8bit"), unless(False, never("weights have 16 bits or more"))),
    "output_dir": FOLDER,
    "logging_steps": _ALWAYS,
    "logging_strategy": _ALWAYS,
    "log_completions": never("samples are always kept; see record.rollouts and headrace rollouts"),
    "eval_strategy": never("evaluation.every says how often"),
    "save_strategy": never("checkpoint.every says how often"),
    "vllm_importance_sampling_correction": unless(True, never("the correction is always made; see algorithm.behavior")),
    "repetition_penalty": never("log-probs would not be those of the policy"),
    "min_p": never("what is left out of sampling is top_p's and top_k's here"),
    **dict.fromkeys(
        ("use_vllm", "vllm_mode", "vllm_server_host", "vllm_server_port", "vllm_server_timeout", "vllm_model_impl"),
        EMBEDDED,
    ),
    **dict.fromkeys(("vllm_tensor_parallel_size", "vllm_gpu_memory_utilization", "vllm_server_base_url"), EMBEDDED),
}
