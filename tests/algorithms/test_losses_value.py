import math

import pytest
import torch

from headrace.algorithms.losses import value_loss

F64 = torch.float64
NAN = math.nan


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


VALUES, OLD, RETURNS = tensor(1, 3, 3, -1, NAN), tensor(1.1, 1, 1, 0, 4), tensor(2, 0, 5, -0.6, NAN)
MASK = torch.tensor([True, True, True, True, False])


def run(clip: float | None):
    values, old, returns = (x.clone().requires_grad_() for x in (VALUES, OLD, RETURNS))
    loss = value_loss(values, old, returns, MASK, clip=clip)
    loss.per_token.sum().backward()
    assert old.grad is None
    assert returns.grad is None
    assert values.grad is not None
    return loss, values.grad


def test_half_the_squared_error() -> None:
    loss, gradient = run(None)
    assert loss.per_token.tolist() == pytest.approx([0.5, 4.5, 2, 0.08, 0])
    assert gradient.tolist() == pytest.approx([-1, 3, -2, -0.4, 0])
    assert loss.stats["clipped"].item() == 0


def test_the_clip_takes_the_worse_of_both() -> None:
    # Clipped values: 1, 1.5, 1.5, -0.5; squared errors 1, 2.25, 12.25, 0.01 against 1, 9, 4, 0.16.
    loss, gradient = run(0.5)
    assert loss.per_token.tolist() == pytest.approx([0.5, 4.5, 12.25 / 2, 0.08, 0])
    assert gradient.tolist() == pytest.approx([-1, 3, 0, -0.4, 0])
    assert {name: stat.item() for name, stat in loss.stats.items()} == pytest.approx(
        {"tokens": 4, "value": 6, "return": 6.4, "squared_error": 14.16, "clipped": 1}
    )


def test_a_clip_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"clip is 0.0"):
        run(0.0)
