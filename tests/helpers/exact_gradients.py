"""What a step of `layout_rank.py` is made by, in float64: what its ranks, and one rank, are rounded from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from layout_rank import COLUMNS, loss, made, rows, value_loss
from torch import Tensor

from headrace.models import packed_lm
from headrace.models.packed_lm import PackedLM
from headrace.models.packing import MicroBatch, pack
from headrace.models.values import token_values
from headrace.training.objective import PolicyOutputs


@contextmanager
def _in_float64() -> Iterator[None]:
    """Where code asks for float32, as norms, rotations and softmax do whatever the model's dtype, it gets float64."""
    with ExitStack() as stack:
        for name in ("float32", "float"):
            stack.enter_context(mock.patch.object(torch, name, torch.float64))
        stack.enter_context(mock.patch.object(Tensor, "float", Tensor.double))
        stack.enter_context(mock.patch.dict(packed_lm._TOLERANCE, {torch.float64: 1e-9}))
        yield


def exact_gradients(case: dict[str, Any]) -> dict[str, Tensor]:
    """By name, clipped as the case says. From the weights of the case in float32, which they are exactly."""
    model: Any = made(case).double().eval()
    if hasattr(model.config, "num_experts"):
        model.set_experts_implementation("eager")  # grouped products know no float64
    given = pack(rows(kept=case.get("kept", False), routed=case.get("routed", False)))
    micro: MicroBatch = replace(
        given,
        columns={name: column.double() for name, column in given.columns.items()},
        temperatures=None if given.temperatures is None else given.temperatures.double(),
    )
    values = case.get("values", False)
    with _in_float64():
        outputs = token_values if values else PolicyOutputs(COLUMNS, 1.0)
        found = outputs(PackedLM(model), micro)
        assert found.dtype is torch.float64
        terms = (value_loss if values else loss)(found, micro)
        terms.numerator.backward()
    gradients = {
        name: one.grad / float(terms.denominator) for name, one in model.named_parameters() if one.grad is not None
    }
    norm = float(torch.stack([one.norm() for one in gradients.values()]).norm())
    clip = min(1.0, case.get("clip", 1e6) / norm)
    return {name: one * clip for name, one in gradients.items()}
