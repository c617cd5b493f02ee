"""The largest values of each row, the same ones whatever the hardware: of equal ones the lower places."""

from __future__ import annotations

import torch


def largest(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest of each row of float32 values [n, V], descending, and their places (int64), [n, count] each.

    Of equal values the lower place is taken, and comes first.
    """
    if count >= values.shape[1]:
        return values.sort(dim=-1, descending=True, stable=True)
    if values.device.type != "cpu":
        return _by_key(values, count)
    found, places = torch.topk(values, count, dim=-1)
    # `topk` takes any of those that are equal to the smallest one found.
    smallest = found[:, -1:]
    undecided = ((values == smallest).sum(dim=-1) > (found == smallest).sum(dim=-1)).nonzero()[:, 0]
    if len(undecided):
        found[undecided], places[undecided] = _by_key(values[undecided], count)
    ties = (found[:, 1:] == found[:, :-1]).any(dim=-1).nonzero()[:, 0]
    if len(ties):
        by_place, order = places[ties].sort(dim=-1)
        found[ties], again = found[ties].gather(1, order).sort(dim=-1, descending=True, stable=True)
        places[ties] = by_place.gather(1, again)
    return found, places


def _by_key(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """By keys of 64 bits that are never equal: the value's order above, that of the places reversed below."""
    bits = (values + 0.0).view(torch.int32)  # -0.0 is 0.0
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    places = torch.arange(values.shape[1], device=values.device)
    keys = (ascending.to(torch.int64) << 32) | (0xFFFFFFFF - places)
    chosen = 0xFFFFFFFF - (torch.topk(keys, count, dim=-1).values & 0xFFFFFFFF)
    return values.gather(1, chosen), chosen
