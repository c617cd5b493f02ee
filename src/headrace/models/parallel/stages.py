"""A Hugging Face decoder cut into stages: embedding | layers | norm and output layer.

What a stage does not have is replaced by a module that passes hidden states on, so that the model's own code runs each
stage, and parameters keep their names. A stage behind the first is given hidden states as if they were embeddings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from headrace.config import ConfigError
from headrace.config.layout import layers_of_stages
from headrace.models.experts import numbers_met
from headrace.models.packed_lm import PackedForward, PackedLM, agree, output_layer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PROBE_LENGTHS = (5, 3)


@dataclass(frozen=True, slots=True)
class Outline:
    """A parameter of the whole model."""

    shape: tuple[int, ...]
    stages: tuple[int, ...]
    """Those that have it: two have the matrix that is both embedding and output layer."""


class PassedOn(nn.Module):
    """In the place of what another stage has."""

    def forward(self, hidden_states: Tensor, *_: object, **__: object) -> Tensor:
        return hidden_states


def keep_stage(lm: PackedLM, stage: int, stages: int) -> dict[str, Outline]:
    """Cut everything else from the model of `lm`. What parameters the whole model had, by name, in its order. Raises
    ConfigError for an architecture that is not made of such parts, or has fewer layers than stages."""
    if stages > 1:
        require_stages(lm, stages)
    outlines = _outlines(lm.model, stages)
    for parent, name, _ in _left_out(lm.model, stage, stages):
        setattr(parent, name, PassedOn())
    return outlines


def require_stages(lm: PackedLM, stages: int) -> None:
    """As `keep_stage`, which cuts. Raises ConfigError."""
    model: Any = lm.model
    layers: Any = getattr(model.base_model, "layers", None)
    has_parts = (
        lm.forward_kind is PackedForward.SEGMENTS
        and lm.has_plain_head
        and isinstance(layers, nn.ModuleList)
        and hasattr(model.base_model, "norm")
    )
    if has_parts and len(layers) < stages:
        raise ConfigError(
            f"layout has pp {stages}, and the model has {len(layers)} layers; use a pp of {len(layers)} at most"
        )
    if not (has_parts and _are_apart(model, stages) and _agrees(lm, stages)):
        raise without_stages(model, stages)


def without_stages(model: PreTrainedModel, stages: int) -> ConfigError:
    return ConfigError(
        f"layout has pp {stages}, and {type(model).__name__} is not made of an embedding, layers, a norm and an "
        "output layer that compute the same one after another; use pp: 1"
    )


def _are_apart(model: Any, stages: int) -> bool:
    """Whether every parameter is one stage's, but for an embedding that is the output layer too."""
    embedding, outlines = model.get_input_embeddings().weight, _outlines(model, stages)
    return all(len(outlines[name].stages) == 1 or one is embedding for name, one in model.named_parameters())


@torch.no_grad()
def _agrees(lm: PackedLM, stages: int) -> bool:
    """Whether two short samples come out of the stages, one after another, as out of the whole model."""
    lengths = list(_PROBE_LENGTHS)
    tokens = torch.arange(1, 1 + sum(lengths), device=lm.device) % lm.model.config.get_text_config().vocab_size
    positions = torch.cat([torch.arange(length, device=lm.device) for length in lengths])
    everywhere = torch.arange(len(tokens), device=lm.device)
    whole = lm.hidden_states(tokens, positions, lengths, everywhere)  # a head may be a new one, which makes 0 of all
    states: Tensor | None = None
    try:
        for stage in range(stages):
            with _only(lm.model, stage, stages), lm.behind(states):
                if stage < stages - 1:
                    states = lm.carried(tokens, positions, lengths)
                else:
                    return agree(lm.hidden_states(tokens, positions, lengths, everywhere), whole)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return False  # other parts, called in another way
    return False


def _outlines(model: PreTrainedModel, stages: int) -> dict[str, Outline]:
    had: dict[str, list[int]] = {name: [] for name, _ in model.named_parameters()}
    for stage in range(stages):
        with _only(model, stage, stages):
            for name, _ in model.named_parameters():
                had[name].append(stage)
    return {name: Outline(tuple(one.shape), tuple(had[name])) for name, one in model.named_parameters()}


@contextmanager
def _only(model: PreTrainedModel, stage: int, stages: int) -> Iterator[None]:
    """With this stage alone, for a while."""
    left_out = _left_out(model, stage, stages)
    for parent, name, _ in left_out:
        setattr(parent, name, PassedOn())
    try:
        yield
    finally:
        for parent, name, module in left_out:
            setattr(parent, name, module)


def _left_out(model: Any, stage: int, stages: int) -> list[tuple[nn.Module, str, nn.Module]]:
    """The modules that a stage does not have: of each its parent, its name there, and itself."""
    if stages == 1:
        return []
    base, head, embedding = model.base_model, output_layer(model), model.get_input_embeddings()
    layer = numbers_met(base.layers[0], model.config)
    counts = layers_of_stages(len(base.layers), stages, head.weight.numel() / layer)
    own = range(sum(counts[:stage]), sum(counts[: stage + 1]))
    others: list[nn.Module] = [layer for number, layer in enumerate(base.layers) if number not in own]
    is_last = stage == stages - 1
    if stage and not (is_last and head.weight is embedding.weight):
        others.append(embedding)
    if not is_last:
        others += [base.norm, head]
    wanted = {id(module) for module in others}
    return [
        (parent, name, module)
        for parent in model.modules()
        for name, module in parent.named_children()
        if id(module) in wanted
    ]
