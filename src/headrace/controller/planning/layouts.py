"""Whether models can be cut up among ranks as a config wants it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from headrace.config import ConfigError, TrainConfig
from headrace.config.layout import LayoutConfig
from headrace.config.places import key_of, layouts_of
from headrace.models.experts import experts_per_token, routed_bytes
from headrace.models.loading import auto_class, outline, read_model_config
from headrace.models.routing import ROUTED_TYPES

GIVE_VALUES = ("critic", "reward")
"""Kinds of workers whose models do."""


def check_layouts(config: TrainConfig, policy: Any, device_of: Callable[[str], torch.device]) -> None:
    """`policy`: its Hugging Face config. `device_of`: on which workers of a kind compute. Raises ConfigError with what
    would fit."""
    layouts = layouts_of(config)
    for kind in (*config.trainer_processes, *config.scorer_processes):
        if (layout := layouts[kind]).ranks > 1 or layout.stage:
            model, key, device = config_of_kind(kind, config, policy), key_of(kind), device_of(kind)
            here, trains = kind not in config.cluster.place, kind not in config.scorer_processes
            check_layout(key, layout, model, device, here=here, trains=trains, gives_values=kind in GIVE_VALUES)


def check_layout(
    name: str,
    layout: LayoutConfig,
    model: Any,
    device: torch.device,
    *,
    here: bool = True,
    trains: bool = True,
    gives_values: bool = False,
) -> None:
    """`name`: of the section that has the layout; `model`: its Hugging Face config. `here`: its ranks are on this
    machine, not where a cluster has room. `trains`: else they only score. `gives_values`: it is a classifier of tokens
    into one class, else a language model. Raises ConfigError with what would fit."""
    if layout.ranks == 1 and not layout.stage:
        return
    if device.type != "cpu":
        _check_devices(name, layout, device, here=here, trains=trains)
    if layout.ep > 1 or (layout.tp > 1 and experts_per_token(model)):
        _check_experts(name, layout, model)
    _check_divides(name, layout, model.get_text_config())
    if layout.tp > 1:
        _check_split(name, model, gives_values=gives_values)
    if layout.tp > 1 or layout.cp > 1 or layout.pp > 1:
        _check_cut(name, layout, model, gives_values=gives_values)


def config_of_kind(kind: str, config: TrainConfig, policy: Any) -> Any:
    """The Hugging Face config of the model that workers of this kind have, or are made of."""
    own = {
        "critic": config.critic.model,
        "reference": config.reference.model,
        "teacher": config.teacher.model,
        "reward": config.reward.model.path,
    }.get(kind)
    return policy if own is None else read_model_config(own)


def _check_devices(name: str, layout: LayoutConfig, first: torch.device, *, here: bool, trains: bool) -> None:
    """Each rank has one of its own, from `first` on. `here`: of this machine, not of a cluster."""
    there = torch.cuda.device_count() - (first.index or 0)
    if here and layout.ranks > there:
        raise ConfigError(
            f"{name}.layout is {layout.text}, of {layout.ranks} ranks, each on a CUDA device of its own, and this "
            f"machine has {there} from {first} on; use a layout of {there} rank(s) at most, or set model.device: cpu"
        )
    if trains and not layout.stage:
        raise ConfigError(
            f"{name}.layout is {layout.text}, and ranks on CUDA devices cut the model up; add zero: 2, or zero: 3"
        )


def _check_experts(name: str, layout: LayoutConfig, policy: Any) -> None:
    text, ep, tp = policy.get_text_config(), layout.ep, layout.tp
    if not routed_bytes(policy):
        axis = f"ep {ep}" if ep > 1 else f"tp {tp}"
        raise ConfigError(
            f"{name}.layout has {axis}, and the model, of type {text.model_type}, has no experts that ranks could "
            f"share ({', '.join(ROUTED_TYPES)} have); use {axis[:2]}: 1"
        )
    experts = int(text.num_experts)
    if experts % tp:
        raise ConfigError(
            f"{name}.layout has tp {tp}, and tensor ranks share the {experts} experts of a layer; use a tp of "
            f"{_divisors([experts])}"
        )
    ranks, rows = (
        layout.dp // layout.model_replicas * layout.cp,
        (2 * int(text.moe_intermediate_size), int(text.hidden_size)),
    )
    fits = [
        each
        for each in _numbers([ranks, experts // tp])
        if each * tp == 1 or not any(count % (ranks // each) for count in rows)
    ]
    if ep not in fits:
        raise ConfigError(
            f"{name}.layout has ep {ep}: each of so many ranks has as many of the {text.num_experts} experts of a "
            f"layer, whose matrices of {rows[0]} and {rows[1]} rows are cut up among {ranks // ep} rank(s) that have "
            f"the same ones; use an ep of {', '.join(map(str, fits))}"
        )


def _check_split(name: str, config: Any, *, gives_values: bool) -> None:
    """As the ranks see it, of the model without memory."""
    from headrace.training.layouts.sharding import check_split  # torch takes its time to import what cuts models up

    model = outline(config, str(config.name_or_path), auto_class(gives_values=gives_values))
    try:
        check_split(model)
    except ConfigError as error:
        raise ConfigError(f"{name}.{error}") from error


def _check_cut(name: str, layout: LayoutConfig, model: Any, *, gives_values: bool) -> None:
    from headrace.models.parallel.small_twin import check_cut

    try:
        check_cut(model, shared=layout.tp > 1 or layout.cp > 1, stages=layout.pp, gives_values=gives_values)
    except ConfigError as error:
        raise ConfigError(f"{name}.{error}") from error


def _check_divides(name: str, layout: LayoutConfig, text: Any) -> None:
    heads = int(text.num_attention_heads)
    key_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    tp, cp = layout.tp, layout.cp
    if layout.pp > (layers := int(text.num_hidden_layers)):
        raise ConfigError(
            f"{name}.layout has pp {layout.pp}, and the model has {layers} layers; use a pp of {layers} at most"
        )
    counts = {
        "attention heads": heads,
        "key and value heads": key_heads,
        "numbers between the two matrices of its feed-forward layers": int(getattr(text, "intermediate_size", tp)),
    }
    for what, count in counts.items():
        if count % tp:
            raise ConfigError(
                f"{name}.layout has tp {tp}, and the model has {count} {what}; use a tp of "
                f"{_divisors(list(counts.values()))}"
            )
    if -(-(rows := int(text.vocab_size)) // tp) * (tp - 1) >= rows:
        fits = [each for each in _numbers(list(counts.values())) if each == 1 or -(-rows // each) * (each - 1) < rows]
        raise ConfigError(
            f"{name}.layout has tp {tp}, and with as many of the {rows} rows of the vocabulary in each rank but the "
            f"last, some have none; use a tp of {', '.join(map(str, fits))}"
        )
    if (heads // tp) % cp or ((key_heads // tp) % cp and cp % (key_heads // tp)):
        fits = [
            each
            for each in range(1, heads // tp + 1)
            if not (heads // tp) % each and (not (key_heads // tp) % each or not each % (key_heads // tp))
        ]
        raise ConfigError(
            f"{name}.layout has cp {cp}, and each rank of tp {tp} has {heads // tp} attention heads and "
            f"{key_heads // tp} of keys and values; use a cp of {', '.join(map(str, fits))}"
        )


def _divisors(counts: list[int]) -> str:
    return ", ".join(map(str, _numbers(counts)))


def _numbers(counts: list[int]) -> list[int]:
    """That divide all of these."""
    return [each for each in range(1, min(counts) + 1) if not any(count % each for count in counts)]
