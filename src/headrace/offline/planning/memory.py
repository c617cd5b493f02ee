"""How much memory an offline trainer will take, worked out from shapes alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from headrace.config import RMConfig
from headrace.config.values.dtypes import ITEM_BYTES
from headrace.controller.planning import free_memory
from headrace.controller.planning.activations import DecoderShape, passes_bytes
from headrace.controller.planning.planned_model import PlannedModel
from headrace.controller.planning.product_workspaces import WORKSPACES, workspaces_of_learning
from headrace.controller.planning.role_devices import is_elsewhere
from headrace.controller.planning.run_processes import check_room, rank_processes
from headrace.controller.planning.trained_memory import trained_bytes_of, trainer_uses
from headrace.offline.trained.of_config import OfflineConfig


@dataclass(frozen=True, slots=True)
class OfflineMemory:
    """Bytes by use: on a CPU of all ranks, without activations; on a device of one."""

    model: PlannedModel
    uses: Mapping[str, int]
    place: str
    """Whose memory it is: `this host`, or a device."""
    free: int | None
    """There, now; None where nobody here can ask, as about a device of a cluster that is joined."""
    on_host: Mapping[str, int]
    """Beside it, if the place is a device: of this host's memory."""
    on_device: bool

    @property
    def parameters(self) -> int:
        """Number of parameters, not bytes."""
        return self.model.parameters

    @property
    def total(self) -> int:
        return sum(self.uses.values())


def estimate_offline_memory(
    config: OfflineConfig, model_config: Any, device: torch.device, longest: int
) -> OfflineMemory:
    """`model_config`: a Hugging Face config. `longest`: tokens of the longest unit. Loads nothing. Raises ConfigError
    for more ranks than this machine has memory for."""
    ranks = config.trainer.layout.ranks
    if ranks > 1 and config.runtime.address is None:
        host = free_memory.free_bytes(torch.device("cpu"))
        check_room(rank_processes(ranks), host, "fewer ranks (trainer.layout)")
    model = PlannedModel.of(model_config, gives_values=isinstance(config, RMConfig))
    own, dtype, elsewhere = config.trainer, config.model.dtype, is_elsewhere(config, "trainer")
    uses, on_device = trainer_uses(own, model, dtype, device), device.type != "cpu"
    kept = {}
    if on_device:
        shape, checkpointing = DecoderShape.of(model_config), config.model.gradient_checkpointing
        uses["trainer: activations"] = passes_bytes(own, shape, longest, ITEM_BYTES[dtype], checkpointing=checkpointing)
        uses[WORKSPACES] = workspaces_of_learning()
        off_device = trained_bytes_of(own, model, dtype, device).off_device
        kept["trainer: float32 weights, moments"] = off_device
    return OfflineMemory(
        model,
        {use: size for use, size in uses.items() if size},
        str(device) if on_device else "the cluster's nodes" if elsewhere else "this host",
        None if elsewhere else free_memory.free_bytes(device),
        {use: size for use, size in kept.items() if size},
        on_device,
    )
