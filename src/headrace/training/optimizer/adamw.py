"""AdamW over flat parameters."""

from __future__ import annotations

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


class FlatAdamW:
    """Decoupled weight decay (Loshchilov & Hutter, arXiv 1711.05101, algorithm 2) by torch's fused kernel.

    Decay applies to matrices only: not to biases and the scales of norms.
    """

    def __init__(self, flat: FlatParameters, settings: OptimizerSettings) -> None:
        self.exp_avg = torch.zeros_like(flat.master)
        self.exp_avg_sq = torch.zeros_like(flat.master)
        parts = [(slice(0, flat.decayed), settings.weight_decay), (slice(flat.decayed, len(flat.master)), 0.0)]
        groups = []
        self._steps: list[Tensor] = []
        states: list[tuple[nn.Parameter, dict[str, Tensor]]] = []
        for part, decay in parts:
            if part.start == part.stop:
                continue
            parameter = nn.Parameter(flat.master[part])
            parameter.grad = flat.grads[part]
            groups.append({"params": [parameter], "weight_decay": decay})
            step = torch.zeros((), dtype=torch.float32, device=flat.master.device)
            self._steps.append(step)
            states.append(
                (parameter, {"step": step, "exp_avg": self.exp_avg[part], "exp_avg_sq": self.exp_avg_sq[part]})
            )
        self._optimizer = torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True)
        for parameter, state in states:
            self._optimizer.state[parameter] = state

    @property
    def updates(self) -> int:
        """Updates made so far: the t of the bias corrections."""
        return int(self._steps[0].item())

    @updates.setter
    def updates(self, count: int) -> None:
        for step in self._steps:
            step.fill_(count)

    def update(self, lr: float) -> None:
        """One update of the master weights from the gradients."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
