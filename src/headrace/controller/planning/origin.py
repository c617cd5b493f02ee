"""What a run begins from: another run's weights, critic and optimiser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from headrace.config import ConfigError, TrainConfig
from headrace.config.reading.config_text import values_of
from headrace.config.values.dtypes import SAFETENSORS_NAMES
from headrace.models.loading import check_model, read_model_config
from headrace.models.weight_files import read_headers
from headrace.store import RunReader, RunStore
from headrace.store.origin import Origin, find_origin, taken_origin

if TYPE_CHECKING:
    from headrace.training.group import TrainerGroup

_SHAPE = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "tie_word_embeddings",
)


def resumed_config(config: TrainConfig, folder: Path) -> TrainConfig:
    """`config` with the `from` of the run in `folder`, unless it names another: a resumed run need not say again what
    it began from, nor which version that was."""
    if not RunStore.exists(folder):
        return config
    with RunReader(folder) as run:
        try:
            own = TrainConfig.model_validate(values_of(run.config_yaml)).from_
        except (ValueError, yaml.YAMLError):  # which is told when the two are compared
            return config
    given = config.from_
    if own.run is None or (
        given.run is not None and own.run not in (given.run, f"{given.run}@{own.run.rpartition('@')[2]}")
    ):
        return config
    return config.model_copy(update={"from_": given.model_copy(update={"run": own.run, "optimizer": own.optimizer})})


def with_origin(config: TrainConfig, folder: Path | None) -> tuple[TrainConfig, Origin | None]:
    """Where `from.run` is, and the config that names its version. What the run in `folder` has taken needs no source
    any more. Raises RunMissing, ConfigError."""
    name = config.from_.run
    if name is None:
        return config, None
    origin = (taken_origin(folder, name) if folder is not None else None) or find_origin(name)
    if config.from_.optimizer and not origin.has_trainer_state:
        raise ConfigError(
            f"from.optimizer is true, and {origin.path} has weights only, as a model that is finished: leave "
            "--from-optimizer out, or begin from a checkpoint"
        )
    return config.model_copy(update={"from_": config.from_.model_copy(update={"run": origin.name})}), origin


def check_origin(config: TrainConfig, origin: Origin) -> None:
    """Raises ConfigError unless its weights are of the model at `model.path`."""
    check_model(str(origin.model))
    own, other = (read_model_config(path).get_text_config() for path in (config.model.path, str(origin.model)))
    for name in _SHAPE:
        one, two = getattr(own, name, None), getattr(other, name, None)
        if one != two:
            raise ConfigError(
                f"from.run is {origin.name}, a model whose {name} is {two}, and that of model.path "
                f"({config.model.path}) is {one}: begin from a run of the same model, or set model.path to its"
            )


async def begin_from(origin: Origin, trainer: TrainerGroup, critic: TrainerGroup | None, config: TrainConfig) -> None:
    """What `model` does not hold of the trainers' state: float32 master weights, the optimisers' moments.

    Master weights are taken where `model` is them rounded to the dtype that is trained in, so that version 0 is the
    same for all who compute with it. Raises CheckpointError.
    """
    for made, path in ((trainer, origin.path), (critic, origin.critic)):
        if made is None or path is None or not Origin("", path).has_trainer_state:
            continue
        saved = {tensor.dtype for tensor in read_headers(path / "model").values()}
        masters = saved <= {"F32", SAFETENSORS_NAMES[config.model.dtype]}
        await made.begin_from(path, masters=masters, optimizer=config.from_.optimizer)
