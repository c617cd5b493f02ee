"""What an offline trainer records of each optimiser step, and of each evaluation on its held-out rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

STEP, EVALUATION = "step", "eval"
"""Kinds of entries in the record. Each stands under the number of steps that are done."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Means over a batch or a held-out set, as the weights were before the step. What a trainer does not know is
    None."""

    loss: float
    accuracy: float | None = None
    """`dpo` and `rm`: share of the pairs whose chosen response is preferred. `sft`, held out only: share of the
    response's tokens that are the model's first choice."""
    margin: float | None = None
    """Of a pair: reward of the chosen response less that of the rejected one."""
    chosen_reward: float | None = None
    """`dpo`: beta x (log-prob of the response - the reference's). `rm`: the score."""
    rejected_reward: float | None = None
    chosen_logprob: float | None = None
    """`dpo`: of the response, summed over its tokens (their mean with `per_length`)."""
    rejected_logprob: float | None = None
    reference_chosen_logprob: float | None = None
    reference_rejected_logprob: float | None = None


@dataclass(frozen=True, slots=True)
class OfflineStep:
    """One optimiser step."""

    step: int
    """From 1."""
    branch: int
    rows: int
    """Demonstrations or pairs."""
    measured: Measured
    grad_norm: float
    lr: float
    skipped: bool
    """The gradient was not finite: the weights stayed."""
    trained_tokens: int
    forwarded_tokens: int
    padding_tokens: int
    elapsed_s: float
    """Of training, all processes together, when the step was done."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> OfflineStep:
        """Inverse of `to_json`."""
        known = {field.name: record[field.name] for field in fields(OfflineStep) if field.name in record}
        return OfflineStep(**{**known, "measured": Measured(**record["measured"])})


@dataclass(frozen=True, slots=True)
class HeldOutRows:
    """The held-out rows under the weights after so many steps."""

    step: int
    branch: int
    rows: int
    measured: Measured
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> HeldOutRows:
        """Inverse of `to_json`."""
        return HeldOutRows(**{**record, "measured": Measured(**record["measured"])})
