"""AdamW, over flat parameters or others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from headrace.training.optimizer.flat_buffers import FlatParameters


class OptimizerSettings(Protocol):
    """The settings read here; `headrace.config.trainer.OptimizerConfig` has them."""

    @property
    def lr(self) -> float: ...

    @property
    def betas(self) -> tuple[float, float]: ...

    @property
    def eps(self) -> float: ...

    @property
    def weight_decay(self) -> float: ...

    @property
    def offload(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Trained:
    """A float32 tensor that is trained in place, and its moments, of one shape."""

    parameter: nn.Parameter
    exp_avg: Tensor
    exp_avg_sq: Tensor
    decays: bool
    """Whether it is a matrix: biases and the scales of norms do not decay."""


class FusedAdamW:
    """Decoupled weight decay (Loshchilov & Hutter, arXiv 1711.05101, algorithm 2) by torch's fused kernel."""

    def __init__(self, trained: Sequence[Trained], settings: OptimizerSettings) -> None:
        """Gradients are the parameters' `grad` at `update`."""
        self._updates = 0
        self._steps: list[Tensor] = []
        self._optimizer: torch.optim.AdamW | None = None
        groups = [
            {
                "params": [one.parameter for one in trained if one.decays is decays],
                "weight_decay": settings.weight_decay if decays else 0.0,
            }
            for decays in (True, False)
        ]
        groups = [group for group in groups if group["params"]]
        if not groups:
            return
        optimizer = self._optimizer = torch.optim.AdamW(
            groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True
        )
        for one in trained:
            step = torch.zeros((), dtype=torch.float32, device=one.parameter.device)
            self._steps.append(step)
            optimizer.state[one.parameter] = {"step": step, "exp_avg": one.exp_avg, "exp_avg_sq": one.exp_avg_sq}

    @property
    def updates(self) -> int:
        """Updates made so far: the t of the bias corrections."""
        return self._updates

    @updates.setter
    def updates(self, count: int) -> None:
        self._updates = count
        for step in self._steps:
            step.fill_(count)

    def update(self, lr: float) -> None:
        """One update from the gradients."""
        self._updates += 1
        if self._optimizer is None:
            return
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()


class FlatAdamW(FusedAdamW):
    """Of flat parameters."""

    def __init__(self, flat: FlatParameters, settings: OptimizerSettings) -> None:
        self.exp_avg = torch.zeros_like(flat.master)
        self.exp_avg_sq = torch.zeros_like(flat.master)
        trained = []
        for part, decays in ((slice(0, flat.decayed), True), (slice(flat.decayed, len(flat.master)), False)):
            if part.start == part.stop:
                continue
            parameter = nn.Parameter(flat.master[part])
            parameter.grad = flat.grads[part]
            trained.append(Trained(parameter, self.exp_avg[part], self.exp_avg_sq[part], decays))
        super().__init__(trained, settings)
