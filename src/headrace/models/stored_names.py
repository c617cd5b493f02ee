"""How transformers stores a model: which tensors of the files are which parts of its parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from headrace.models.parted_files import FileTensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_ODD = (ArithmeticError, AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError)
"""What another library's conversion may raise of tensors without memory."""


def stored_tensors(model: PreTrainedModel, dtype: torch.dtype) -> list[FileTensor] | None:
    """Of each parameter, tied ones once, in `dtype`, and of what else the model is saved with, as it is. None where
    what is stored is no part of what the model has, but worked out of it."""
    outlines = _outlines(model, dtype)
    try:
        stored = _reverted(model, outlines)
    except _ODD:
        return None
    of = {outline.untyped_storage()._cdata: name for name, outline in outlines.items()}
    found = []
    for name, tensor in stored.items():
        parameter = of.get(tensor.untyped_storage()._cdata)
        box = None if parameter is None else _box(tensor, tuple(outlines[parameter].shape))
        if parameter is None or box is None:
            return None
        found.append(FileTensor(name, tuple(tensor.shape), tensor.dtype, parameter, *box))
    covered = dict.fromkeys(outlines, 0)
    for each in found:
        covered[each.parameter] += prod(each.box)
    return found if all(covered[name] == outline.numel() for name, outline in outlines.items()) else None


def others(model: PreTrainedModel, trained: Collection[str]) -> dict[str, Tensor]:
    """What else the model is saved with, beside its `trained` parameters."""
    return {name: tensor for name, tensor in _saved(model).items() if name not in trained}


def _saved(model: PreTrainedModel) -> dict[str, Tensor]:
    """Tied parameters once."""
    named = dict(model.named_parameters(remove_duplicate=False))
    once = dict(model.named_parameters())
    ignored = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    state = model.state_dict()
    return {name: state[name] for name in state if name not in ignored and (name in once or name not in named)}


def _outlines(model: PreTrainedModel, dtype: torch.dtype) -> dict[str, Tensor]:
    """Without memory."""
    parameters = dict(model.named_parameters())
    return {
        name: torch.empty(tensor.shape, dtype=dtype if name in parameters else tensor.dtype, device="meta")
        for name, tensor in _saved(model).items()
    }


def _reverted(model: PreTrainedModel, outlines: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What is stored of these, each a view of what it is stored of, if it can be."""
    from transformers.core_model_loading import revert_weight_conversion

    with _Views(), torch.no_grad():
        found: dict[str, Tensor] = revert_weight_conversion(model, dict(outlines))
    return found


class _Views(TorchFunctionMode):
    """Parts stay views: what has no memory need not be contiguous."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.contiguous:
            return args[0]
        return func(*args, **(kwargs or {}))


def _box(view: Tensor, whole: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Where the view begins in a contiguous tensor of shape `whole`, and its lengths there; None if it is no box of it
    with its dimensions in their order."""
    left = list(zip(view.shape, view.stride(), strict=True))
    begin, lengths, offset = [], [], int(view.storage_offset())
    for dim, length in enumerate(whole):
        stride = prod(whole[dim + 1 :])
        first, offset = divmod(offset, max(stride, 1))
        taken = 1
        if left and left[0][1] == stride and left[0][0] + first <= length:
            taken = left.pop(0)[0]
        begin.append(first)
        lengths.append(taken)
    return None if left or prod(lengths) != view.numel() else (tuple(begin), tuple(lengths))
