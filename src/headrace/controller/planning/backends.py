"""Whether the trainer's back-end is there, and has the model's layers; and where it was run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.config import ConfigError, TrainConfig
from headrace.training.megatron.support import PACKAGE, installed_version, shape_of

if TYPE_CHECKING:
    import torch


def check_installed(config: TrainConfig) -> None:
    """Raises ConfigError. Imports no package."""
    if _is_megatron(config):
        installed_version()


def check_mapped(config: TrainConfig, policy: Any, device: torch.device) -> None:
    """`policy`: its Hugging Face config. Raises ConfigError."""
    if not _is_megatron(config):
        return
    shape_of(policy)
    if config.trainer.layout.ranks > 1 and device.type != "cpu":
        raise ConfigError(
            f"trainer.layout is {config.trainer.layout.text}, and ranks on CUDA devices cut the model up, which they "
            "cannot with trainer.backend megatron; use one rank, or trainer.backend: hugging_face"
        )


def describe_backend(config: TrainConfig, *, on_device: bool) -> list[str]:
    """A line of the plan, where it is not transformers. `on_device`: whether it computes on a CUDA device."""
    if not _is_megatron(config):
        return []
    where = "not run on a CUDA device" if on_device else "run by Headrace's tests on CPUs, not on a CUDA device"
    return [f"backend   {PACKAGE} {installed_version()} trains the policy: {where}"]


def _is_megatron(config: TrainConfig) -> bool:
    return config.trainer.backend == "megatron" and not config.rollouts_only
