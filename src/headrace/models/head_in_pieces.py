"""The output layer over some rows of hidden states at a time, whose logits nobody keeps: the backward pass makes them
again, and adds up in float32 what they give of the layer's gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, eq=False)
class HeadInPieces:
    make: Callable[[Tensor, Tensor], Tensor]
    """Of hidden states [M, hidden] at some places [M] what is wanted of their logits, [M, columns]; differentiable, and
    again the same each time."""
    parameters: Sequence[nn.Parameter]
    """That it makes it with, beside the hidden states: those that are trained."""
    sums: Mapping[nn.Parameter, Tensor]
    """Of parameters, float32 sums to which their gradients are added. Those of others are added up by themselves, and
    handed on in the parameter's dtype, rounded once."""
    rows: int
    """At a time."""

    def __call__(self, hidden: Tensor, at: Tensor) -> Tensor:
        """As `make`, of all rows. Differentiable, also twice."""
        found: Tensor = _Pieces.apply(self, at, hidden, *self.parameters)
        return found

    @torch.no_grad()
    def without_gradient(self, hidden: Tensor, at: Tensor) -> Tensor:
        """As `make`, of all rows."""
        return self.whole(hidden, at)

    def whole(self, hidden: Tensor, at: Tensor) -> Tensor:
        """As `make`, of all rows; where gradients are wanted, with all that they take."""
        return torch.cat([self.make(*part) for part in self._split(hidden, at)])

    def gradients(self, hidden: Tensor, at: Tensor, grad: Tensor, wanted: Sequence[bool]) -> list[Tensor | None]:
        """Of the hidden states and of each of the parameters, where it is `wanted` and goes to no sum."""
        trained = [own for own, is_wanted in zip(self.parameters, wanted[1:], strict=True) if is_wanted]
        totals = {own: self._total(own) for own in trained}
        parts = [self._add(part, place, by, totals) for part, place, by in self._split(hidden, at, grad)]
        by_hidden = torch.cat(parts) if wanted[0] else None
        handed_on = (None if own in self.sums else totals.get(own) for own in self.parameters)
        of_parameters = zip(self.parameters, handed_on, strict=True)
        return [by_hidden, *(None if total is None else total.to(own.dtype) for own, total in of_parameters)]

    def _add(self, hidden: Tensor, at: Tensor, grad: Tensor, totals: Mapping[nn.Parameter, Tensor]) -> Tensor:
        """The gradient of these hidden states; the parameters' is added to `totals`, and gone."""
        hidden = hidden.detach().requires_grad_()
        with torch.enable_grad():
            found = self.make(hidden, at)
        by_hidden, *others = torch.autograd.grad(found, [hidden, *totals], grad)
        for total, other in zip(totals.values(), others, strict=True):
            total.add_(other)
        return by_hidden

    def _total(self, own: nn.Parameter) -> Tensor:
        found = self.sums.get(own)
        return torch.zeros_like(own, dtype=torch.float32, requires_grad=False) if found is None else found

    def _split(self, *rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
        return zip(*(each.split(self.rows) for each in rows), strict=True)


class _Pieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, head: HeadInPieces, at: Tensor, hidden: Tensor, *parameters: Tensor) -> Tensor:
        ctx.head = head
        ctx.save_for_backward(at, hidden, *parameters)
        return head.whole(hidden, at)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        head: HeadInPieces = ctx.head
        at, *inputs = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2:]
        if not torch.is_grad_enabled():
            return None, None, *head.gradients(inputs[0], at, grads[0], wanted)
        # Gradients of these are wanted in their turn.
        trained = [each for each, is_wanted in zip(inputs, wanted, strict=True) if is_wanted]
        found = iter(torch.autograd.grad(head.whole(inputs[0], at), trained, grads[0], create_graph=True))
        return None, None, *(next(found) if is_wanted else None for is_wanted in wanted)
