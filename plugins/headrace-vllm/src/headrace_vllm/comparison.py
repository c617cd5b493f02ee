"""Whether what vLLM has loaded is what was published.

A parameter of vLLM may be several published tensors, one behind another: the query, key and value projections, say.
Each element's bits are compared, in its place; where ranks share a layer out, of what is this one's (`own_share.py`).
Of a matrix that a kernel has packed, and that nobody can read any more, a few columns come out exactly as the product
with a unit vector. The matrices of experts, which a kernel may pack as well, and fill up with zeros, are read all the
same, and have their elements in other places: of each expert, and of any other parameter of another shape than it was
published in, or of parts whose order is not known, sums are compared, of the bits of all elements, taken as whole
numbers. These add up exactly, and know nothing of places.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from headrace_vllm.own_share import own_share

_COLUMNS = 8
_EXPERTS = {"gate_up_proj": "w13_weight", "down_proj": "w2_weight"}
"""What vLLM calls the matrices of all experts of a layer."""
_OF_EXPERTS = 3
"""Dimensions."""
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass
class Comparison:
    version: str = ""
    """As `0.7`; empty: of none."""
    whole: int = 0
    """Parameters that were compared bit for bit."""
    by_sum: int = 0
    """Those of which sums of bits were."""
    in_part: int = 0
    """Those of which some columns were."""
    unread: list[str] = field(default_factory=list)
    """Those that could not be."""
    different: list[str] = field(default_factory=list)


def compared(model: torch.nn.Module, published: Mapping[str, torch.Tensor], version: str = "") -> Comparison:
    """`published`: by the names of the checkpoint format."""
    found = Comparison(version)
    sources = _sources(model, published)
    for name, parameter in model.named_parameters():
        parts, of = sources.get(name), name.rpartition(".")[0]
        layer = model.get_submodule(of)
        if parts is None:
            found.unread.append(name)
            continue
        if parts.in_order:
            parts = parts._replace(tensors=own_share(layer, of, parts.tensors))
        if parameter.numel() == 0:
            _compare_packed(layer, name, parts, parameter.dtype, found)
        elif parameter.numel() < sum(tensor.numel() for tensor in parts.tensors):
            found.unread.append(name)  # a part of it, and it is not known which
        elif parts.tensors[0].ndim == _OF_EXPERTS:
            _compare_experts(name, parameter.detach(), parts.tensors, found)
        elif parts.in_order and all(one.ndim and one.shape[1:] == parameter.shape[1:] for one in parts.tensors):
            _compare_places(name, parameter.detach(), parts.tensors, found)
        else:
            _compare_sums(name, parameter.detach(), parts.tensors, found)
    _compare_head(model, published, found)
    return found


class _Parts(NamedTuple):
    """Tensors that are loaded into one parameter."""

    tensors: Sequence[torch.Tensor]
    in_order: bool
    """Whether they lie there one behind another as here."""


def _sources(model: torch.nn.Module, published: Mapping[str, torch.Tensor]) -> dict[str, _Parts]:
    """Of each parameter what is loaded into it. vLLM's own mapper may have stacked names already."""
    stacked: Mapping[str, Sequence[str]] = getattr(model, "packed_modules_mapping", {})
    packed = {part: whole for whole, parts in stacked.items() for part in parts}
    places = {part: place for parts in stacked.values() for place, part in enumerate(parts)}
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    names = [name for name, _ in model.named_parameters()]
    found: dict[str, list[tuple[int, torch.Tensor]]] = defaultdict(list)
    for name, tensor in published.items():
        mapped = name if mapper is None else next(iter(mapper.apply_list([name])), name)
        module, _, last = mapped.rpartition(".")
        parent, _, own = module.rpartition(".")
        whole = f"{parent}.{packed.get(own, own)}.{last}" if parent else mapped
        if own == "experts" and last in _EXPERTS:
            whole = next((one for one in names if one.startswith(f"{module}.") and one.endswith(_EXPERTS[last])), whole)
        if whole in names:
            place = places.get(name.rpartition(".")[0].rpartition(".")[2], -1)
            found[whole].append((place, tensor))
    return {name: _in_order(parts) for name, parts in found.items()}


def _in_order(parts: Sequence[tuple[int, torch.Tensor]]) -> _Parts:
    """`parts`: with the place of each, or -1."""
    known = {place for place, _ in parts if place >= 0}
    tensors = [tensor for _, tensor in sorted(parts, key=lambda part: part[0])]
    return _Parts(tensors, len(parts) == 1 or len(known) == len(parts))


def _compare_places(name: str, parameter: torch.Tensor, tensors: Sequence[torch.Tensor], found: Comparison) -> None:
    """`tensors` are its rows, one behind another; rows that are more are filled up with zeros."""
    found.whole += 1
    end = 0
    for tensor in tensors:
        own = parameter[end : end + len(tensor)]
        end += len(tensor)
        if not torch.equal(_bits(own), _bits(tensor.to(parameter.device, parameter.dtype))):
            found.different.append(name)
            return
    if _bits(parameter[end:]).any():
        found.different.append(name)


def _compare_sums(name: str, parameter: torch.Tensor, tensors: Sequence[torch.Tensor], found: Comparison) -> None:
    found.by_sum += 1
    if _sum(parameter) != sum(_sum(one.to(parameter.device, parameter.dtype)) for one in tensors):
        found.different.append(name)


def _compare_experts(name: str, parameter: torch.Tensor, tensors: Sequence[torch.Tensor], found: Comparison) -> None:
    """Both [experts, ...]."""
    if len(tensors) != 1 or parameter.shape[0] != tensors[0].shape[0]:
        found.unread.append(name)
        return
    found.by_sum += 1
    told = (one.to(parameter.device, parameter.dtype) for one in tensors[0])
    if [_sum(one) for one in parameter] != [_sum(one) for one in told]:
        found.different.append(name)


def _compare_packed(layer: torch.nn.Module, name: str, parts: _Parts, dtype: torch.dtype, found: Comparison) -> None:
    tensors = parts.tensors
    width = tensors[0].shape[-1]
    product = getattr(layer, "cpu_linear", None)
    own_width = getattr(layer, "input_size_per_partition", width)
    if product is None or own_width != width or any(tensor.ndim != 2 or tensor.shape[1] != width for tensor in tensors):
        found.unread.append(name)
        return
    columns = _chosen(width)
    units = torch.zeros(len(columns), width, dtype=dtype)
    units[torch.arange(len(columns)), columns] = 1.0
    there = product(units, layer.weight, None).t() + 0.0  # none of its zeros is negative
    told = torch.cat([tensor[:, columns].to(dtype) + 0.0 for tensor in tensors])
    if len(there) < len(told):
        found.unread.append(name)
        return
    found.in_part += 1
    if parts.in_order:
        same = torch.equal(_bits(there[: len(told)]), _bits(told)) and not _bits(there[len(told) :]).any()
    else:
        same = _sum(there) == _sum(told)
    if not same:
        found.different.append(name)


def _compare_head(model: torch.nn.Module, published: Mapping[str, torch.Tensor], found: Comparison) -> None:
    """A kernel may have packed it for itself beside its weight, which may be the embedding's."""
    head = getattr(model, "lm_head", None)
    weight = getattr(head, "weight", None)
    own = published.get("lm_head.weight")
    if own is None:
        own = next((one for name, one in published.items() if name.endswith("embed_tokens.weight")), None)
    if head is None or not hasattr(head, "cpu_linear") or weight is None or weight.numel() == 0 or own is None:
        return
    parts = _Parts(own_share(head, "lm_head", [own]), True)
    _compare_packed(head, "lm_head.weight, as its kernel has it", parts, weight.dtype, found)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Of each element, as a whole number."""
    return tensor.contiguous().view(_WHOLE[tensor.element_size()])


def _sum(tensor: torch.Tensor) -> int:
    return int(_bits(tensor).sum(dtype=torch.int64))


def _chosen(width: int) -> torch.Tensor:
    """Fixed columns, spread out."""
    return torch.unique(torch.linspace(0, width - 1, min(_COLUMNS, width)).long())
