"""The coefficient of a KL penalty, from one batch to the next."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from headrace.config.algorithm import KLConfig


@dataclass(frozen=True, slots=True)
class FixedKL:
    beta: float

    def after(self, kl: float, samples: int) -> FixedKL:
        """The controller for the next batch: this one."""
        return self


@dataclass(frozen=True, slots=True)
class AdaptiveKL:
    """Moves beta in proportion to how far the KL is from its target (Ziegler et al. 2019, arXiv 1909.08593, 2.2).

    e = clip(kl / target - 1, -0.2, 0.2); beta <- beta (1 + e samples / horizon). The paper's K_beta is samples /
    horizon, as in its code, in TRL and in verl. `kl` is what `target` is: there, of whole samples in nats.
    """

    beta: float
    target: float
    horizon: int
    """Samples."""

    def __post_init__(self) -> None:
        for name in ("beta", "target", "horizon"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; use more than 0")

    def after(self, kl: float, samples: int) -> AdaptiveKL:
        """The controller for the next batch, after a batch of `samples` with this mean KL.

        Raises ValueError for a KL that is no number, or a batch of 5 horizons or more (beta could reach 0).
        """
        if math.isnan(kl):
            raise ValueError("kl is not a number; the controller cannot follow it")
        if samples >= 5 * self.horizon:
            raise ValueError(f"samples is {samples}, with a horizon of {self.horizon}; use a longer horizon")
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        return replace(self, beta=self.beta * (1 + error * samples / self.horizon))


class Coefficient(Protocol):
    """What a penalty is multiplied by."""

    @property
    def value(self) -> float:
        """Now."""


@dataclass(slots=True)
class TakenCoefficient:
    """One that another process decides on."""

    value: float


_REMEMBERED = 16
"""Batches: more than advantages are ever ahead of the record."""


class KLCoefficient:
    """The coefficient of a run, from batch to batch, for whoever applies it."""

    def __init__(self, config: KLConfig, own: Callable[[float, float, int], float] | None = None) -> None:
        """`own`: the user's own controller; see `Pieces.kl_controller`."""
        self._own = own
        self._controller: AdaptiveKL | FixedKL = (
            FixedKL(config.coefficient)
            if config.target is None
            else AdaptiveKL(config.coefficient, config.target, config.horizon)
        )
        self._first = self._controller
        self._used: dict[int, float] = {}
        """What batches that were followed were penalised with; of the last ones."""

    @property
    def value(self) -> float:
        """Now: for the batch after the last that was followed."""
        return self._controller.beta

    def of(self, batch: int) -> float:
        """What `batch` is penalised with, or was."""
        return self._used.get(batch, self.value)

    def follow(self, batch: int, kl: float, samples: int) -> None:
        """`batch`, of `samples`, had this KL, summed over all of them. Said again of a batch, it changes nothing. See
        `AdaptiveKL.after` for errors."""
        if batch not in self._used and samples:
            self.take(batch, self.after(kl, samples))

    def after(self, kl: float, samples: int) -> float:
        """The value that follows on this one after a batch of `samples` with this KL, summed over all of them. Changes
        nothing; see `AdaptiveKL.after` for errors."""
        if self._own is None:
            return self._controller.after(kl / samples, samples).beta
        return float(self._own(self.value, kl / samples, samples))

    def take(self, batch: int, value: float) -> None:
        """`value` follows on `batch`, which was penalised with that of now. Said again of a batch, it changes
        nothing."""
        if batch in self._used:
            return
        self._used = {number: beta for number, beta in self._used.items() if number > batch - _REMEMBERED}
        self._used[batch] = self.value
        self._controller = replace(self._controller, beta=value)

    @property
    def state(self) -> dict[str, float]:
        """What a checkpoint must hold."""
        return {"kl_coefficient": self.value}

    def go_back(self, state: Mapping[str, float]) -> None:
        """The run went back to a commit with this state, or none: batches since will be followed again."""
        self._used.clear()
        self._controller = self._first
        self.restore(state)

    def restore(self, state: Mapping[str, float]) -> None:
        if "kl_coefficient" in state:
            self._controller = replace(self._controller, beta=state["kl_coefficient"])
