"""What one of several ranks (tensor parallel) has of published tensors, as vLLM's layers share them out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_KNOWN = ("embed_tokens", "lm_head", "qkv_proj", "q_proj", "k_proj", "v_proj", "o_proj")
_KNOWN_OF_MLP = ("gate_up_proj", "gate_proj", "up_proj", "down_proj")
"""Layers that are loaded as `own_share` has it. Others (of a Mamba, say) may have a way of their own."""


def own_share(layer: torch.nn.Module, name: str, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """`name`: of the layer. `tensors`: whole, those of one of its parameters, in their order; matrices are [outputs,
    inputs]. What this rank holds of each; of a layer that is not known, or that every rank has whole, all."""
    if name.rpartition(".")[2] not in (*_KNOWN, *_KNOWN_OF_MLP):
        return list(tensors)
    if (indices := getattr(layer, "shard_indices", None)) is not None:  # an embedding, or a head
        return [one[indices.org_vocab_start_index : indices.org_vocab_end_index] for one in tensors]
    ranks, rank = getattr(layer, "tp_size", 1), getattr(layer, "tp_rank", 0)
    outputs = getattr(layer, "output_partition_sizes", None)
    inputs = getattr(layer, "input_size_per_partition", None)
    if ranks == 1 or outputs is None or inputs is None:
        return list(tensors)
    if sum(outputs) != sum(map(len, tensors)):
        tensors = [_piece(one, 0, *place) for one, place in zip(tensors, _of_outputs(layer, tensors), strict=True)]
    return [_piece(one, 1, inputs, rank) if one.ndim == 2 and one.shape[1] != inputs else one for one in tensors]


def _of_outputs(layer: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """Of each tensor how many outputs this rank has, and which piece of that size they are."""
    ranks, rank = int(layer.tp_size), int(layer.tp_rank)  # type: ignore[arg-type]
    copies = getattr(layer, "num_kv_head_replicas", None)
    if copies is None:
        return [(len(one) // ranks, rank) for one in tensors]
    queries, *others = tensors  # with fewer heads of keys than ranks several have the same
    return [(len(queries) // ranks, rank), *((len(one) * copies // ranks, rank // copies) for one in others)]


def _piece(tensor: torch.Tensor, dim: int, size: int, place: int) -> torch.Tensor:
    """The one at that place; all where there is none."""
    begin = size * place
    return tensor.narrow(dim, begin, size) if begin + size <= tensor.shape[dim] else tensor
