"""A Hugging Face model cut up among ranks: FSDP2 over its parameters, tensor parallel within its layers.

Where a layer has experts, its tensor ranks have a part of the tokens each, as where norms work: routers, whose weights
all of them have, see that part, and the experts are shared out among them (`expert_share`).
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from headrace.config import ConfigError
from headrace.models.packed_lm import output_layer
from headrace.models.parallel.expert_share import expert_modules, share_experts
from headrace.models.parallel.routers import OfOwnTokens
from headrace.models.parallel.whole_head import WholeHead
from headrace.models.routing import is_router

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_COLUMNS, _ROWS = "colwise", "rowwise"
_KNOWN = {_COLUMNS, _ROWS, "replicated_with_grad_allreduce", "embedding_rowwise"}
"""What transformers' plan of an architecture may say of a module; the embedding is split here in any case, and experts
are shared out."""
_HEAD_NORMS = ("q_norm", "k_norm")
"""Over the width of a head; they see some of the heads."""


def split_layers(model: PreTrainedModel, mesh: DeviceMesh) -> None:
    """Tensor parallel over `mesh` (one dimension), sequence parallel where norms work; the head of a classifier of
    tokens stays whole. Every parameter becomes a DTensor. Raises ConfigError, as `check_split`."""
    styles = check_split(model)
    base = model.base_model
    embedding, head = model.get_input_embeddings(), output_layer(model)
    has_embedding, has_head = (hasattr(module, "weight") for module in (embedding, head))  # a stage may have neither
    tied = has_embedding and has_head and head.weight is embedding.weight
    parallelize_module(base, mesh, styles)
    if has_head:
        parallelize_module(head, mesh, ColwiseParallel() if model.get_output_embeddings() is head else WholeHead())
    if tied:  # each was cut by itself
        head.weight = embedding.weight


def check_split(model: PreTrainedModel) -> dict[str, ParallelStyle]:
    """How each module of the base model is split among tensor ranks, by name; the model may be without memory. Raises
    ConfigError for an architecture that transformers has no plan for, or one with other parts."""
    plan = _plan_of(model)
    base = model.base_model
    experts = expert_modules(base)
    mixtures = [module for module in base.modules() if any(child in experts for child in module.children())]
    styles: dict[str, ParallelStyle] = {}
    for name, module in base.named_modules():
        if "Norm" in type(module).__name__:
            by_head = name.rpartition(".")[2] in _HEAD_NORMS
            styles[name] = SequenceParallel(sequence_dim=2 if by_head else 1, use_local_output=True)
        elif name.endswith(".self_attn"):
            styles[name] = PrepareModuleInput(
                input_kwarg_layouts={"hidden_states": Shard(1)},
                desired_input_kwarg_layouts={"hidden_states": Replicate()},
            )
        elif module in experts or module in mixtures:
            continue
        elif is_router(module):
            styles[name] = OfOwnTokens()
        elif name.endswith(".mlp"):
            styles[name] = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        elif style := next((style for pattern, style in plan.items() if fnmatchcase(name, pattern)), None):
            styles[name] = ColwiseParallel() if style == _COLUMNS else RowwiseParallel(output_layouts=Shard(1))
    embedding, head = model.get_input_embeddings(), output_layer(model)
    inside = {id(module): name for name, module in base.named_modules()}
    if hasattr(embedding, "weight"):
        if id(embedding) not in inside:
            raise ConfigError(f"layout has tp, and {type(model).__name__} has its embedding elsewhere; use tp: 1")
        styles[inside[id(embedding)]] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    split = {id(each) for name, style in styles.items() for each in _of(base.get_submodule(name), style)}
    split |= {id(each) for module in experts for each in module.parameters()}  # `shard` cuts them up
    split |= {id(each) for each in (head.parameters() if isinstance(head, nn.Module) else ())}
    if left := [name for name, each in model.named_parameters() if id(each) not in split]:
        raise ConfigError(
            f"layout has tp, and transformers' plan of {type(model).__name__} leaves {left[0]} out; use tp: 1"
        )
    return styles


def _of(module: nn.Module, style: ParallelStyle) -> Iterator[nn.Parameter]:
    """Parameters that are split by a module's style; some only see to what goes in."""
    return iter(()) if isinstance(style, PrepareModuleInput) else module.parameters(recurse=False)


def shard(
    model: PreTrainedModel,
    mesh: DeviceMesh,
    dtype: torch.dtype,
    *,
    keeps_weights: bool,
    offload: bool = False,
    experts: DeviceMesh | None = None,
) -> None:
    """FSDP2 over `mesh` (one dimension): forward and backward in `dtype`, gradients summed in float32, as sums.
    `keeps_weights`: whether a layer's weights stay gathered between its forward and its backward pass (ZeRO-2, else
    ZeRO-3). `offload`: parts and gradients are in the host's memory. `experts`: of the same ranks, [copies, ranks that
    share the experts of a layer]; those that have the same experts cut them up among them by rows. Raises ConfigError
    for a torch that adds up no sums."""
    if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
        raise ConfigError(
            f"layout cuts the model up among ranks, for which torch {torch.__version__} is too old; install a newer "
            "one (2.13 is tried), or use dp alone"
        )
    how: dict[str, Any] = {
        "mesh": mesh,
        # What a pass is given, temperatures and what rotates positions among it, stays float32, as on one rank.
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False),
        "offload_policy": CPUOffloadPolicy() if offload else OffloadPolicy(),
        "reshard_after_forward": not keeps_weights,
    }
    if experts is not None:
        copies, sharing = (experts[name] for name in experts.mesh_dim_names or ())
        for module in share_experts(model, sharing):
            fully_shard(module, **{**how, "mesh": copies, "shard_placement_fn": lambda parameter: Shard(1)})
    names = set(model._no_split_modules or ())
    for module in model.modules():
        if type(module).__name__ in names:
            fully_shard(module, **how)
    fully_shard(model, **how)
    for part in parts(model):
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)


@torch.no_grad()
def give_memory(model: nn.Module, device: torch.device) -> None:
    """To the parts of a model that was cut up without any: what they hold is nothing yet."""
    given: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in given:
                assert isinstance(parameter, DTensor), name
                own = torch.empty_like(parameter.to_local(), device=device)
                whole = DTensor.from_local(
                    own,
                    parameter.device_mesh,
                    parameter.placements,
                    run_check=False,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                )
                given[id(parameter)] = nn.Parameter(whole)
            setattr(module, name, given[id(parameter)])
    model._apply(lambda tensor: tensor)  # by which FSDP2 sees that its parameters are others


def parts(model: nn.Module) -> Iterator[FSDPModule]:
    """What is gathered and let go of as a whole."""
    return (module for module in model.modules() if isinstance(module, FSDPModule))


def _plan_of(model: Any) -> dict[str, str]:
    plan: dict[str, str] = model.base_model.config.get_text_config().base_model_tp_plan or {}
    name = type(model).__name__
    if not plan:
        raise ConfigError(f"layout has tp, and transformers has no plan to split {name}; use tp: 1")
    plan = {pattern: style for pattern, style in plan.items() if ".experts" not in pattern}
    if odd := sorted(set(plan.values()) - _KNOWN):
        raise ConfigError(f"layout has tp, and transformers' plan to split {name} has {odd[0]!r}; use tp: 1")
    return {pattern: style for pattern, style in plan.items() if style in (_COLUMNS, _ROWS)}
