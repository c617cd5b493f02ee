"""Sums and gathers over a group of processes that autograd knows the way back of.

What comes out is the same in all processes of the group. Its gradient is either the same in all of them too (`same`:
they all compute the same loss of it), or each has a part of it that has to be added up (`parts`).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

Group = Any
"""torch's ProcessGroup."""
Gradient = Literal["same", "parts"]
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""By their new names where torch has them."""


def summed(values: Tensor, group: Group) -> Tensor:
    """The sum of all processes' `values`, of one shape; the gradient is the same in all."""
    result: Tensor = _Sum.apply(values, group)
    return result


def spread(values: Tensor, group: Group) -> Tensor:
    """`values`, which are the same in all processes, for each to compute something else with: the gradients add up."""
    result: Tensor = _Spread.apply(values, group)
    return result


@torch.no_grad()
def largest(values: Tensor, group: Group) -> Tensor:
    """The elementwise maximum, without gradient."""
    found = values.clone()
    dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    return found


def gathered(rows: Tensor, group: Group, gradient: Gradient) -> Tensor:
    """[n, ...] of each of S processes, one after another in the order of their ranks: [S n, ...]."""
    result: Tensor = _Gather.apply(rows, group, gradient)
    return result


def exchanged(values: Tensor, group: Group) -> Tensor:
    """[S, ...]: entry j goes to process j, and entry i of what comes is from process i."""
    result: Tensor = _Exchange.apply(values, group)
    return result


def traded(rows: Tensor, sent: list[int], came: list[int], group: Group) -> Tensor:
    """[N, ...], of which the first `sent[0]` rows go to process 0, the next to process 1, and so on: [M, ...], of which
    the first `came[0]` are from process 0, and so on."""
    result: Tensor = _Trade.apply(rows, sent, came, group)
    return result


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Group) -> Tensor:
        found = values.clone()
        dist.all_reduce(found, group=group)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad = grads[0].clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Group, gradient: Gradient) -> Tensor:
        ctx.group, ctx.gradient, ctx.count = group, gradient, len(rows)
        found = rows.new_empty((dist.get_world_size(group) * len(rows), *rows.shape[1:]))
        _all_gather(found, rows.contiguous(), group=group)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        grad = grads[0].contiguous()
        if ctx.gradient == "parts":
            own = grad.new_empty((ctx.count, *grad.shape[1:]))
            _reduce_scatter(own, grad, group=ctx.group)
        else:
            begin = dist.get_rank(ctx.group) * ctx.count
            own = grad[begin : begin + ctx.count]
        return own, None, None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return _exchange(values, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _exchange(grads[0], ctx.group), None


class _Trade(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sent: list[int], came: list[int], group: Group) -> Tensor:
        ctx.group, ctx.sent, ctx.came = group, sent, came
        return _trade(rows, sent, came, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _trade(grads[0], ctx.came, ctx.sent, ctx.group), None, None, None


def _trade(rows: Tensor, sent: list[int], came: list[int], group: Group) -> Tensor:
    found = rows.new_empty((sum(came), *rows.shape[1:]))
    dist.all_to_all_single(found, rows.contiguous(), came, sent, group=group)
    return found


def _exchange(values: Tensor, group: Group) -> Tensor:
    found = torch.empty_like(values, memory_format=torch.contiguous_format)
    dist.all_to_all_single(found, values.contiguous(), group=group)
    return found
