"""Experts shared out among processes: each has as many, and all tokens that are routed to them come to it.

Every process of the group passes over tokens of its own at the same time. A token's states go to the processes that
have its experts, and what these make of them comes back, where it is weighted and added up (expert parallelism:
Lepikhin et al., arXiv:2006.16668, section 2.2). So an expert's gradient is that of all tokens of the group, in the
process that has it. Processes need not send as many tokens as they get, and an expert may get none.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from headrace.models.parallel.collectives import Group, traded
from headrace.models.parallel.own_part import own_part
from headrace.models.parallel.shared_pass import Ranks

_SHARE = "headrace_expert_share"
_WEIGHTS = {"gate_up_proj", "down_proj"}


def expert_modules(model: nn.Module) -> list[nn.Module]:
    """Those that have the weights of all experts of a layer."""
    return [
        module for module in model.modules() if {name for name, _ in module.named_parameters(recurse=False)} == _WEIGHTS
    ]


def share_experts(model: nn.Module, mesh: DeviceMesh) -> list[nn.Module]:
    """Leave of each layer's experts those of this process, by `mesh` (one dimension): the parameters become DTensors,
    cut up by expert. Returns the modules. Their number has to divide that of the experts."""
    ranks = Ranks(mesh.get_group(), mesh.get_local_rank(), mesh.size())
    found = expert_modules(model)
    for module in found:
        for name in sorted(_WEIGHTS):
            whole = getattr(module, name)
            own = whole.detach().chunk(ranks.size)[ranks.rank].clone()
            cut = DTensor.from_local(own, mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride())
            setattr(module, name, nn.Parameter(cut))
        setattr(module, _SHARE, ranks)
        module.forward = MethodType(_forward, module)
    return found


def _forward(module: Any, hidden: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    """`hidden` [N, D], and of each token the numbers of its `experts` and their `weights`, [N, k], to [N, D]."""
    ranks: Ranks = getattr(module, _SHARE)
    gate_up, down = (own_part(getattr(module, name)) for name in ("gate_up_proj", "down_proj"))
    here = len(gate_up)
    flat = experts.flatten()
    order = flat.argsort(stable=True)
    sent = flat.bincount(minlength=here * ranks.size).view(ranks.size, here)
    came = _told(sent, ranks.group)
    to, of = sent.sum(1).tolist(), came.sum(1).tolist()
    arrived = traded(hidden.index_select(0, order // experts.shape[1]), to, of, ranks.group)
    # What comes is ordered by process, then by expert.
    which = torch.arange(here, device=came.device).repeat(ranks.size).repeat_interleave(came.flatten())
    by_expert = which.argsort(stable=True)
    made = [
        F.linear(_gated(module, F.linear(states, gate_up[number])), down[number])
        for number, states in enumerate(arrived.index_select(0, by_expert).split(came.sum(0).tolist()))
    ]  # also of none: a gradient of nothing is one
    back = traded(torch.cat(made).index_select(0, by_expert.argsort()), of, to, ranks.group)
    outputs = back.index_select(0, order.argsort()).unflatten(0, experts.shape)
    return (outputs * weights[..., None]).sum(1).to(hidden.dtype)


def _gated(module: Any, states: Tensor) -> Tensor:
    gate, up = states.chunk(2, dim=-1)
    gated: Tensor = module.act_fn(gate) * up
    return gated


def _told(counts: Tensor, group: Group) -> Tensor:
    """[S, ...]: row j goes to process j."""
    found = torch.empty_like(counts)
    dist.all_to_all_single(found, counts.contiguous(), group=group)
    return found
