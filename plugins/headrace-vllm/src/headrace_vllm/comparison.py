"""Whether what vLLM has loaded is what was published.

A parameter of vLLM may be several published tensors, one behind another: the query, key and value projections, say. So
sums are compared, of the bits of all elements, taken as whole numbers: they add up, exactly and in any order. Of a
matrix that a kernel has packed, and that nobody can read any more, a few columns come out exactly as the product with a
unit vector. The matrices of experts are compared expert by expert: a kernel may pack each, and fill it up with zeros.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

_COLUMNS = 8
_EXPERTS = {"gate_up_proj": "w13_weight", "down_proj": "w2_weight"}
"""What vLLM calls the matrices of all experts of a layer."""
_OF_EXPERTS = 3
"""Dimensions."""
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass
class Comparison:
    whole: int = 0
    """Parameters that were compared bit for bit."""
    in_part: int = 0
    """Those of which some columns were."""
    unread: list[str] = field(default_factory=list)
    """Those that could not be."""
    different: list[str] = field(default_factory=list)


def bits(tensor: torch.Tensor) -> int:
    """The sum of its elements' bits, each taken as a whole number."""
    return int(tensor.contiguous().view(_WHOLE[tensor.element_size()]).sum(dtype=torch.int64))


def compared(model: torch.nn.Module, published: Mapping[str, torch.Tensor]) -> Comparison:
    """`published`: by the names of the checkpoint format."""
    found = Comparison()
    sources = _sources(model, published)
    for name, parameter in model.named_parameters():
        tensors = sources.get(name)
        if tensors is None:
            found.unread.append(name)
        elif parameter.numel() == 0:
            _compare_packed(model.get_submodule(name.rpartition(".")[0]), name, tensors, parameter.dtype, found)
        elif parameter.numel() < sum(tensor.numel() for tensor in tensors):
            found.unread.append(name)  # a part of it, of several ranks
        elif tensors[0].ndim == _OF_EXPERTS:
            _compare_experts(name, parameter.detach(), tensors, found)
        else:
            found.whole += 1
            if bits(parameter.detach()) != sum(bits(one.to(parameter.device, parameter.dtype)) for one in tensors):
                found.different.append(name)
    _compare_head(model, published, found)
    return found


def _sources(model: torch.nn.Module, published: Mapping[str, torch.Tensor]) -> dict[str, list[torch.Tensor]]:
    """Of each parameter the tensors that are loaded into it."""
    packed = {part: whole for whole, parts in getattr(model, "packed_modules_mapping", {}).items() for part in parts}
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    names = [name for name, _ in model.named_parameters()]
    found: dict[str, list[torch.Tensor]] = defaultdict(list)
    for name, tensor in published.items():
        mapped = name if mapper is None else mapper.apply_list([name])[0]
        module, _, last = mapped.rpartition(".")
        parent, _, own = module.rpartition(".")
        whole = f"{parent}.{packed.get(own, own)}.{last}" if parent else mapped
        if own == "experts" and last in _EXPERTS:
            whole = next((one for one in names if one.startswith(f"{module}.") and one.endswith(_EXPERTS[last])), whole)
        if whole in names:
            found[whole].append(tensor)
    return found


def _compare_experts(name: str, parameter: torch.Tensor, tensors: list[torch.Tensor], found: Comparison) -> None:
    """Both [experts, ...]."""
    if len(tensors) != 1 or parameter.shape[0] != tensors[0].shape[0]:
        found.unread.append(name)
        return
    found.whole += 1
    told = (one.to(parameter.device, parameter.dtype) for one in tensors[0])
    if [bits(one) for one in parameter] != [bits(one) for one in told]:
        found.different.append(name)


def _compare_packed(
    layer: torch.nn.Module, name: str, tensors: list[torch.Tensor], dtype: torch.dtype, found: Comparison
) -> None:
    width = tensors[0].shape[-1]
    product = getattr(layer, "cpu_linear", None)
    own_width = getattr(layer, "input_size_per_partition", width)
    if product is None or own_width != width or any(tensor.ndim != 2 or tensor.shape[1] != width for tensor in tensors):
        found.unread.append(name)
        return
    columns = _chosen(width)
    units = torch.zeros(len(columns), width, dtype=dtype)
    units[torch.arange(len(columns)), columns] = 1.0
    there = product(units, layer.weight, None) + 0.0
    told = [tensor[:, columns].to(dtype) + 0.0 for tensor in tensors]
    if there.shape[1] < sum(one.shape[0] for one in told):
        found.unread.append(name)
        return
    found.in_part += 1
    if bits(there) != sum(map(bits, told)):
        found.different.append(name)


def _compare_head(model: torch.nn.Module, published: Mapping[str, torch.Tensor], found: Comparison) -> None:
    """Where it is tied to the embedding, its weight is that one's, but a kernel may have packed it for itself."""
    head = getattr(model, "lm_head", None)
    weight = getattr(head, "weight", None)
    tied = next((one for name, one in published.items() if name.endswith("embed_tokens.weight")), None)
    if not hasattr(head, "cpu_linear") or weight is None or "lm_head.weight" in published or tied is None:
        return
    _compare_packed(head, "lm_head.weight", [tied], weight.dtype, found)


def _chosen(width: int) -> torch.Tensor:
    """Fixed columns, spread out."""
    return torch.unique(torch.linspace(0, width - 1, min(_COLUMNS, width)).long())
