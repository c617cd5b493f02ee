"""What an offline trainer will need, read and checked before anything expensive starts."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.config import SFTConfig
from headrace.controller.planning.role_devices import role_device
from headrace.models.loading import read_model_config
from headrace.offline.inputs import Inputs
from headrace.offline.loop import steps_of
from headrace.offline.pairs import pairs_of
from headrace.offline.planning.memory import OfflineMemory, estimate_offline_memory
from headrace.offline.sft import demonstrations_of
from headrace.offline.trained.of_config import OfflineConfig
from headrace.offline.units import size_of


@dataclass(frozen=True, slots=True)
class OfflinePlan:
    """A config that can be run."""

    config: OfflineConfig
    inputs: Inputs
    steps: int
    """Of the whole run."""
    memory: OfflineMemory


def make_offline_plan(config: OfflineConfig) -> OfflinePlan:
    """Look at all that the command itself looks at before it loads a model. Raises ConfigError."""
    inputs = demonstrations_of(config, None) if isinstance(config, SFTConfig) else pairs_of(config, None)
    model = read_model_config(config.model.path)
    longest = max(map(size_of, (*inputs.units, *inputs.held_out)))
    memory = estimate_offline_memory(config, model, role_device(config, "trainer"), longest)
    steps = steps_of(config, len(inputs.units), inputs.per_batch)
    return OfflinePlan(config, inputs, steps, memory)
