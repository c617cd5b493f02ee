"""The weight-transfer engine: takes one published version, whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.logger import init_logger
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from headrace_vllm.comparison import Comparison, compared
from headrace_vllm.group import Group
from headrace_vllm.publication import Publication, PublicationError, opened, size_of, tensors_in

logger = init_logger(__name__)


@dataclass
class InitInfo:
    """Nothing is set up before the first version."""


@dataclass
class UpdateInfo:
    transport: str
    """`shm`, `disk` or `gloo`."""
    address: str
    """A folder; with `gloo`, that of the group's store."""
    branch: int
    number: int
    entries: list[dict[str, Any]] = field(default_factory=list)
    """With `gloo`, as all that follows: of the manifest."""
    at_once: int = 0
    """Bytes of a broadcast."""
    ranks: int = 1
    """Processes of vLLM in the group."""
    seconds: float = 0.0
    """That a wait for the others may take."""


class HeadraceTransfer(WeightTransferEngine[InitInfo, UpdateInfo]):
    """All is done in `update_weights`: between it and the calls around it the model is never in the midst of a load."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.comparison = Comparison()
        """Of the version that was loaded last; of none while one is loaded, and after a fault."""
        self._group: Group | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        pass

    def finish_weight_update(self) -> None:
        pass

    def shutdown(self) -> None:
        self._group = None

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Raises PublicationError; ValueError where it was loaded, and is not what was published."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        name = f"{update_info.branch}.{update_info.number}"
        self.comparison = Comparison()
        found = self._published(update_info)
        self._forget_packed_experts()
        initialize_layerwise_reload(self.model)
        loaded = self.model.load_weights(iter(found.tensors.items()))
        finalize_layerwise_reload(self.model, self.model_config)
        self._pack_head()
        missing = {each for each, _ in self.model.named_parameters()} - set(loaded or ())
        if loaded is not None and missing:
            raise PublicationError(f"version {name} lacks what the model has, as {min(missing)}")
        comparison = compared(self.model, found.tensors, name)
        if not found.stands():
            raise PublicationError(f"version {name} was overtaken while it was read")
        self.comparison = comparison
        if self.comparison.different:
            raise ValueError(
                f"version {name} was loaded, and {len(self.comparison.different)} parameters are not what was "
                f"published, as {self.comparison.different[0]}"
            )
        logger.info("headrace: version %s: %s", name, self.comparison)

    def _published(self, info: UpdateInfo) -> Publication:
        """Raises PublicationError."""
        if info.transport == "gloo":
            return self._sent(info)
        own = self.parallel_config  # each copy of the model looks at all of it
        return opened(info.transport, info.address, info.branch, info.number, rank=own.rank, ranks=own.world_size)

    def _sent(self, info: UpdateInfo) -> Publication:
        """By whoever listens at its address. The group is made anew for another address, and after a fault. Raises
        PublicationError."""
        group, self._group = self._group, None
        try:
            if group is None or group.address != info.address:
                group = Group(info.address, 1 + self._rank, 1 + info.ranks, info.seconds)
            data = group.received(size_of(info.entries), info.at_once)
        except (OSError, RuntimeError) as error:
            raise PublicationError(f"version {info.branch}.{info.number} did not come: {error}") from error
        self._group = group
        return Publication(tensors_in(data, info.entries), lambda: True)

    @property
    def _rank(self) -> int:
        """Of this process among those of vLLM, of all copies of the model (data parallel)."""
        parallel = self.parallel_config
        return int(parallel.data_parallel_index * parallel.world_size + parallel.rank)

    def _forget_packed_experts(self) -> None:
        """On a CPU the kernel of a layer's experts has packed their matrices, which vLLM does when it makes the kernel,
        and not where one is there: then a reload would leave them unpacked. So that it is made anew."""
        if self.device.type == "cpu":
            for module in self.model.modules():
                method: Any = getattr(module, "quant_method", None)
                if getattr(method, "moe_kernel", None) is not None:
                    method.moe_kernel = None

    def _pack_head(self) -> None:
        """On a CPU the head's kernel has a packed copy of the weights, which a reload leaves as it was."""
        head = getattr(self.model, "lm_head", None)
        if self.device.type == "cpu" and hasattr(head, "cpu_linear"):
            from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

            dispatch_cpu_unquantized_gemm(head, remove_weight=False)
