"""Samples of a packed row regrouped into a few batches of similar length, so that attention runs on few large calls.

A group's samples differ in length, and one call per sample costs more in overhead than in arithmetic. Within a batch
shorter samples are filled up at their end: causal attention never looks there, so the filling changes no result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.models.parallel.shared_pass import SharedPass
from headrace.models.prefixes import SharedPrefixes
from headrace.models.varied_lengths import VariedLengths

_MIN_SHARE = 0.75
"""A sample shorter than this share of its batch's longest (less `_SLACK` tokens) begins a new batch: measured,
calls saved against arithmetic on filling."""
_SLACK = 8


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """Where each computed token (U) goes among the regrouped ones (M), in which every sample is whole."""

    shapes: tuple[tuple[int, int], ...]
    """(samples, tokens of the longest) of each batch; their products add up to M."""
    gather: Tensor
    """[M] int64: the token at each regrouped place; filling repeats its sample's last token."""
    place: Tensor
    """[U] int64: the regrouped place of each token, in the first sample that has it."""
    repeats: tuple[Tensor, Tensor] | None
    """Places where a token that samples share stands again, and which token: int64 both. None if none is shared."""
    shared: SharedPass | None = None
    """With whom the pass is shared: then attention is given other tokens, or other heads, than it works on."""
    varied: Callable[[], VariedLengths] | None = None
    """For attention that takes all lengths in one call, made when it is first asked for; None on a CPU."""

    @property
    def tokens(self) -> int:
        """U"""
        return len(self.place)

    @staticmethod
    def of(lengths: Sequence[int], device: torch.device, prefixes: SharedPrefixes | None = None) -> SegmentPlan:
        """Of samples of these lengths, N tokens in all; `prefixes` says which U of them are computed, all if None."""
        prefixes = prefixes or SharedPrefixes.none(sum(lengths))
        starts = np.concatenate([[0], np.cumsum(lengths)])
        shapes: list[tuple[int, int]] = []
        gather: list[np.ndarray] = []
        place = np.empty(starts[-1], dtype=np.int64)
        offset = 0
        for members in _batches(np.asarray(lengths, dtype=np.int64)):
            longest = int(lengths[members[0]])
            size = np.asarray(lengths)[members]
            within = np.arange(longest)
            gather.append((starts[members][:, None] + np.minimum(within, size[:, None] - 1)).ravel())
            real = (within < size[:, None]).ravel()
            place[gather[-1][real]] = offset + np.flatnonzero(real)
            shapes.append((len(members), longest))
            offset += len(members) * longest
        again = np.ones(len(place), dtype=np.bool_)
        again[prefixes.kept] = False
        repeats = None
        if again.any():
            pair = place[again], prefixes.source[again]
            repeats = torch.from_numpy(pair[0]).to(device), torch.from_numpy(pair[1]).to(device)
        return SegmentPlan(
            tuple(shapes),
            torch.from_numpy(prefixes.source[np.concatenate(gather)]).to(device),
            torch.from_numpy(place[prefixes.kept]).to(device),
            repeats,
            varied=None if device.type == "cpu" else cache(lambda: VariedLengths.of(lengths, device, prefixes)),
        )

    def regroup(self, values: Tensor) -> Tensor:
        """[U, ...] to [M, ...]. What flows back to filling is dropped: it must be nothing."""
        return _Regroup.apply(values, self.gather, self.place, self.repeats)

    def spread(self, values: Tensor) -> Tensor:
        """[U, ...] to what `varied` calls keys."""
        if self.varied is None or (varied := self.varied()).source is None:
            return values
        return _Regroup.apply(values, varied.source, varied.place, varied.repeats)

    def restore(self, values: Tensor) -> Tensor:
        """[M, ...] to [U, ...]: of a shared token what its first sample has, which is what all have."""
        return _Restore.apply(values, self.gather, self.place)


def _batches(lengths: np.ndarray) -> list[np.ndarray]:
    """Indices by falling length, cut where the length falls too far below the batch's longest."""
    order = np.argsort(-lengths, kind="stable")
    batches = []
    begin = 0
    while begin < len(order):
        limit = _MIN_SHARE * lengths[order[begin]] - _SLACK
        end = begin + int(np.searchsorted(-lengths[order[begin:]], -limit, side="right"))
        batches.append(order[begin:end])
        begin = end
    return batches


class _Regroup(torch.autograd.Function):
    """Both directions are gathers: autograd's own backward of a gather is a far slower scatter."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, gather: Tensor, place: Tensor, repeats: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        ctx.save_for_backward(place, *(repeats or ()))
        return values.index_select(0, gather)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        place, *repeats = ctx.saved_tensors
        total = grads[0].index_select(0, place)
        if repeats:
            again, token = repeats
            total.index_add_(0, token, grads[0].index_select(0, again))
        return total, None, None, None


class _Restore(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, gather: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        ctx.regrouped = values.shape[0]
        return values.index_select(0, place)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (place,) = ctx.saved_tensors
        (grad,) = grads
        return grad.new_zeros(ctx.regrouped, *grad.shape[1:]).index_copy_(0, place, grad), None, None
