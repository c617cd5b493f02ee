"""Which config each command takes."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config.base import Section
from headrace.config.pairs import DPOConfig, RMConfig
from headrace.config.sft import SFTConfig
from headrace.config.train import TrainConfig

KINDS: Mapping[str, type[Section]] = {"train": TrainConfig, "sft": SFTConfig, "rm": RMConfig, "dpo": DPOConfig}
"""By command. `eval` takes that of `train`, and `check` each of them."""


def command_of(config: Section) -> str:
    """Whose config it is."""
    return next(name for name, kind in KINDS.items() if type(config) is kind)
