"""Where a run's workers are: what Ray makes of a config, and what does not go together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.config.cluster import check_local_devices

if TYPE_CHECKING:
    from headrace.config.layout import LayoutConfig
    from headrace.config.train import TrainConfig

_APART = ("trainer", "critic", "reference", "teacher", "functions")
"""Sections whose `placement` is `process` with Ray, unless given; of a reference that is refreshed it is `hybrid`."""
_TRAINED = ("trainer", "critic")
_KEYS = {"reward": "reward.model"}
"""Sections that are not called as their workers are."""


def apart_with_ray(given: Any) -> Any:
    """A config as it is given, with every worker an actor where it has Ray."""
    runtime = given.get("runtime") if isinstance(given, Mapping) else None
    if not isinstance(runtime, Mapping) or runtime.get("kind") != "ray":
        return given
    made = dict(given)
    for name in _APART:
        if isinstance(section := made.get(name, {}), Mapping):
            refreshed = name == "reference" and section.get("refresh_every") is not None
            made[name] = {"placement": "hybrid" if refreshed else "process", **section}
    reward = made.get("reward")
    if isinstance(reward, Mapping) and isinstance(model := reward.get("model"), Mapping):
        made["reward"] = {**reward, "model": {"placement": "process", **model}}
    engine = made.get("engine", {})
    if isinstance(engine, list) and engine and isinstance(engine[0], Mapping):
        made["engine"] = [{"process": True, **engine[0]}, *engine[1:]]
    elif isinstance(engine, Mapping):
        made["engine"] = {"process": True, **engine}
    return made


def check_places(config: TrainConfig) -> None:
    """Raises ValueError with the mend."""
    if config.runtime.kind == "ray":
        _check_none_here(config)
    elif config.runtime.address is not None:
        raise ValueError(f"runtime.address is {config.runtime.address!r}, and runtime.kind inline; set kind: ray")
    elif config.cluster.is_given:
        raise ValueError("cluster has places of workers, and runtime.kind is inline; set runtime.kind: ray")
    check_local_devices(config.cluster, config.runtime.address)
    if config.engine.colocated:
        _check_turns(config)
    if config.engine.lent:
        _check_lent(config)
    _check_reference(config)
    for name, layout in layouts_of(config).items():
        _check_layout(key_of(name), layout, _placement_of(config, name))
    if config.trainer.backend == "megatron":
        _check_megatron(config)
    if (ranks := config.trainer.layout.dp) > 1 and config.algorithm.loss == "m2po":
        raise ValueError(
            f"trainer.layout.dp is {ranks}, and m2po decides on tokens of the whole batch, which no rank has; use dp: 1"
        )


def layouts_of(config: TrainConfig) -> dict[str, LayoutConfig]:
    """Of the ranks of each model, by the kind of their workers, whether there are any or not."""
    return {
        "trainer": config.trainer.layout,
        "critic": config.critic.layout,
        "reference": config.reference.layout,
        "proximal": config.proximal.layout,
        "teacher": config.teacher.layout,
        "reward": config.reward.model.layout,
    }


def key_of(kind: str) -> str:
    """The section of workers of this kind."""
    return _KEYS.get(kind, kind)


def _placement_of(config: TrainConfig, kind: str) -> str:
    places = {"reward": config.reward.model.placement}
    return places[kind] if kind in places else str(getattr(config, kind).placement)


def _check_layout(key: str, layout: LayoutConfig, placement: str) -> None:
    """`key`: of the section that has the layout."""
    if (layout.ranks > 1 or layout.stage) and placement != "process":
        more = ", or leave the layout out: a hybrid one is in the trainer's ranks" if placement == "hybrid" else ""
        raise ValueError(f"{key}.layout is {layout.text}, and ranks have processes; set {key}.placement: process{more}")
    if key not in _TRAINED and layout.schedule != "1f1b":
        raise ValueError(
            f"{key}.layout.schedule is {layout.schedule}, and a model that only scores makes no passes back; leave it "
            "out"
        )


def _check_turns(config: TrainConfig) -> None:
    if config.async_.mode != "sync":
        raise ValueError(
            f"engine.colocated is true, and async.mode {config.async_.mode}: engines that sleep while the trainer "
            "works generate nothing beside it; set async.mode: sync, or leave engine.colocated out"
        )
    if config.rollouts_only:
        raise ValueError(
            "engine.colocated is true, and rollouts_only: no trainer is there to take turns with; drop one"
        )
    if server := next((section.kind for section in config.engine.sections if section.is_server), None):
        raise ValueError(
            f"engine.colocated is true, and an engine is a server ({server}): embedded engines alone are put to sleep; "
            "set engine.kind: embedded, or leave engine.colocated out"
        )


def _check_lent(config: TrainConfig) -> None:
    lent, ranks = config.engine.lent, config.trainer.layout.ranks
    if config.engine.colocated:
        raise ValueError(
            f"engine.lent is {lent}, and engine.colocated true: all engines have the trainer's devices already; drop "
            "one of the two"
        )
    if config.rollouts_only or config.data.rollouts is not None:
        has = "rollouts_only: no trainer is there" if config.rollouts_only else "data.rollouts: nothing is generated"
        raise ValueError(f"engine.lent is {lent}, and {has}; leave engine.lent out")
    if server := next((section.kind for section in config.engine.sections if section.is_server), None):
        raise ValueError(
            f"engine.lent is {lent}, and an engine is a server ({server}): engines are lent beside embedded ones "
            "alone; set engine.kind: embedded, or leave engine.lent out"
        )
    if lent > ranks:
        raise ValueError(
            f"engine.lent is {lent}, and the trainer has {ranks} rank(s), on whose devices they are, one for each; use "
            f"{ranks}, or more engine.replicas"
        )


def _check_reference(config: TrainConfig) -> None:
    own, with_ray = config.reference, config.runtime.kind == "ray"
    if own.refresh_every is not None:
        refreshed = f"reference.refresh_every is {own.refresh_every}"
        if with_ray and own.model is not None:
            raise ValueError(
                f"{refreshed}, and reference.model {own.model!r}: with runtime.kind ray a reference that is refreshed "
                "is hybrid, and begins as a copy of the policy; leave one of the two out"
            )
        if own.layout.ranks > 1 or own.layout.stage:
            raise ValueError(
                f"{refreshed}, and reference.layout {own.layout.text}: no newer policy reaches ranks of its own; leave "
                "one of the two out"
            )
        if own.placement == "process":
            raise ValueError(
                f"{refreshed}, and reference.placement process, where no newer policy reaches it; use "
                f"{'hybrid' if with_ray else 'own or hybrid'}"
            )
    if own.placement == "hybrid" and own.model is not None:
        raise ValueError(
            "reference.placement is hybrid, which keeps a copy of the policy, and reference.model is "
            f"{own.model!r}; leave one of the two out"
        )


def _check_none_here(config: TrainConfig) -> None:
    places = {f"{name}.placement": getattr(config, name).placement for name in (*_APART, "proximal")}
    if config.reward.model.path is not None:
        places["reward.model.placement"] = config.reward.model.placement
    if here := [key for key, place in places.items() if place == "own"]:
        mend = "process"
        if "reference.placement" in here and config.reference.refresh_every is not None:
            mend = "hybrid" if len(here) == 1 else "process (a reference that is refreshed: hybrid)"
        raise ValueError(
            f"{' and '.join(here)} {'is' if len(here) == 1 else 'are'} own, and with runtime.kind ray all workers are "
            f"actors; leave {'it' if len(here) == 1 else 'them'} out, or set {mend}"
        )
    if not config.engine.apart:
        raise ValueError(
            "engine.process is false, and with runtime.kind ray all workers are actors; leave it out, or set true"
        )


def _check_megatron(config: TrainConfig) -> None:
    """It takes torch's default process group, and each of its ranks has the whole model."""
    trainer = config.trainer
    if trainer.placement != "process":
        raise ValueError(
            "trainer.backend is megatron, which needs torch's default process group, one for each process; set "
            "trainer.placement: process"
        )
    if trainer.layout.ranks > trainer.layout.dp or trainer.layout.stage:
        raise ValueError(
            f"trainer.layout is {trainer.layout.text}, and with trainer.backend megatron each rank has the whole "
            "model; use dp alone, or trainer.backend: hugging_face"
        )
    if config.model.gradient_checkpointing:
        raise ValueError(
            "model.gradient_checkpointing is true, and trainer.backend megatron keeps all activations; set it to "
            "false, or use trainer.backend: hugging_face"
        )
