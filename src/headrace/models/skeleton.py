"""A model without memory for its weights, which are read from its files by whoever has a part of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from headrace.models.file_weights import FileWeights
from headrace.models.folder import check_weights, find_model_folder
from headrace.models.loading import (
    attention_of,
    auto_class,
    check_reward_model,
    is_value_head,
    outline,
    read_model_config,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Skeleton = tuple["PreTrainedModel", FileWeights]
_BIAS = "score.bias"
"""That a classifier of tokens has, and one of sequences lacks."""
_ODD = (ArithmeticError, AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""What a model may raise that needs its weights elsewhere than in their modules."""


def causal_lm_skeleton(path: str | Path, device: torch.device, dtype: torch.dtype = torch.float32) -> Skeleton | None:
    """As `load_causal_lm`, without its weights. None for a model that cannot be had so: its files hold
    something else than its parameters, or it computes with parameters of modules that it does not call."""
    return _skeleton(path, device, auto_class(), dtype, head=lambda name: False)


def value_model_skeleton(path: str | Path, device: torch.device) -> Skeleton | None:
    """As `load_value_model`; see `causal_lm_skeleton`."""
    return _skeleton(path, device, auto_class(gives_values=True), torch.float32, head=is_value_head, num_labels=1)


def reward_model_skeleton(path: str | Path, device: torch.device, dtype: torch.dtype) -> Skeleton | None:
    """As `load_reward_model`; see `causal_lm_skeleton`. None also where a classifier of tokens calls its head
    otherwise."""
    check_reward_model(path)
    return _skeleton(path, device, auto_class(gives_values=True), dtype, head=lambda name: name == _BIAS)


def _skeleton(
    path: str | Path,
    device: torch.device,
    kind: Any,
    dtype: torch.dtype,
    *,
    head: Callable[[str], bool],
    **labels: Any,
) -> Skeleton | None:
    check_weights(str(path))
    folder = find_model_folder(str(path))
    if folder is None:
        return None
    config = read_model_config(path)
    for name, value in labels.items():
        setattr(config, name, value)
    model = outline(config, str(path), kind, dtype=dtype, **attention_of(config)).eval()
    weights = FileWeights.of(folder, model, device, head=head)
    if weights is None or not _fill_buffers(model, device):
        return None
    _take_generation_config(model, folder)
    return (model, weights) if _computes(model, weights) else None


@torch.no_grad()
def _fill_buffers(model: Any, device: torch.device) -> bool:
    """Give buffers what they are made of, as transformers does for those that no file has. False where one is left."""
    stored = set(model.state_dict())
    with_buffers = [(name, module) for name, module in model.named_modules() if [*module.named_buffers(recurse=False)]]
    for prefix, module in with_buffers:
        for name, buffer in module.named_buffers(recurse=False):
            if f"{prefix}.{name}".lstrip(".") in stored or not buffer.is_floating_point():
                return False
            setattr(module, name, torch.full(buffer.shape, torch.nan, dtype=buffer.dtype))
        model._init_weights(module)
    for _, module in with_buffers:
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta or bool(buffer.isnan().any()):
                return False
            setattr(module, name, buffer.to(device))
    return True


def _take_generation_config(model: Any, folder: Path) -> None:
    from transformers import GenerationConfig

    if model.can_generate() and (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(str(folder))


@torch.no_grad()
def _computes(model: PreTrainedModel, weights: FileWeights) -> bool:
    """Whether it computes while each module alone has its parameters."""
    try:
        with weights.lent(model):
            found = model(input_ids=torch.tensor([[0, 1]], device=weights.device), use_cache=False)
    except _ODD:
        return False
    return not found[0].is_meta
