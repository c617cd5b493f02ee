"""Settings of TRL's `GRPOConfig`: from YAML, JSON, or the literals of a call in a Python file, which is not run."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from headrace.cli.init.translate import (
    CONTEXT,
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
from headrace.config import ConfigError

_COMPLETIONS_A_DEVICE, _PER_PROMPT = 8, 8
"""TRL's defaults."""


def read(text: str, file: Path) -> dict[str, Any]:
    """Raises ConfigError."""
    if file.suffix == ".py":
        return _of_python(text, file)
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is neither YAML nor JSON: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{file} holds no mapping; give the arguments of GRPOConfig")
    return {str(name): value for name, value in found.items()}


def _of_python(text: str, file: Path) -> dict[str, Any]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{file} is no Python: {error}") from error
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        given = {word.arg: _value(word.value) for word in node.keywords if word.arg is not None}
        if called == "GRPOConfig":
            found |= given
        elif called == "GRPOTrainer" and isinstance(given.get("model"), str):
            found["model_name_or_path"] = given["model"]
    return found


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return Unreadable(f"it is {ast.unparse(node)}, which only running the file would tell")


def _number(settings: Settings, name: str, default: float) -> float:
    value = settings.get(name)
    return default if not isinstance(value, int | float) or isinstance(value, bool) else value


def _steps_per_generation(settings: Settings) -> float:
    return _number(settings, "steps_per_generation", _number(settings, "gradient_accumulation_steps", 1))


def _batch(value: Any, settings: Settings) -> Mapping[str, Any]:
    """TRL counts responses, of one device; here a batch is counted in prompts."""
    made = _number(settings, "per_device_train_batch_size", _COMPLETIONS_A_DEVICE) * _steps_per_generation(settings)
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


def _epsilon(value: Any, settings: Settings) -> Mapping[str, Any]:
    high = {} if settings.get("epsilon_high") is not None else {"algorithm.clip_high": value}
    return {"algorithm.clip_low": value, **high}


def _betas(value: Any, settings: Settings) -> Mapping[str, Any]:
    first, second = _number(settings, "adam_beta1", 0.9), _number(settings, "adam_beta2", 0.999)
    return {"trainer.optimizer.betas": [first, second]}


def _loss(value: Any, settings: Settings) -> Mapping[str, Any]:
    known: dict[str, dict[str, Any]] = {
        "grpo": {"algorithm.aggregation": "sample_mean"},
        "bnpo": {"algorithm.aggregation": "token_mean"},
        "dapo": {"algorithm.aggregation": "token_mean"},
        "dr_grpo": {"algorithm.aggregation": "sample_sum"},
        "cispo": {"algorithm.loss": "cispo", "algorithm.aggregation": "token_mean"},
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
    "generation_batch_size": _batch,
    "max_steps": unless(-1, _batches("trainer.batches")),
    "save_steps": _batches("checkpoint.every"),
    "eval_steps": _batches("evaluation.every"),
    "max_prompt_length": CONTEXT,
    "bf16": unless(False, one_of("model.dtype", {True: "bfloat16"})),
    "fp16": unless(False, never("there is no float16 here; model.dtype: bfloat16 has the same size")),
    "epsilon": _epsilon,
    "loss_type": _loss,
    "scale_rewards": one_of("algorithm.advantage", _SCALES),
    "importance_sampling_level": unless("token", one_of("algorithm.loss", {"sequence": "gspo"})),
    "top_k": unless(-1, same("rollout.sampling.top_k")),
    "lr_scheduler_type": unless("constant_with_warmup", same("trainer.lr_schedule.kind")),
    "warmup_ratio": _warmup,
    "adam_beta1": _betas,
    "adam_beta2": _betas,
    "report_to": trackers,
    "mask_truncated_completions": unless(False, one_of("algorithm.truncated", {True: "mask"})),
    "ref_model_sync_steps": same("reference.refresh_every"),
    "reward_weights": never("the weights are those of reward.terms"),
    "reward_funcs": never("a reward is named by its place, reward.function: path.py:function"),
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
