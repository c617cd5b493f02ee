"""What vLLM's plugin sees of experts that were loaded."""

from __future__ import annotations

import torch
from headrace_vllm.comparison import compared
from torch import Tensor, nn

EXPERTS = "layers.0.mlp.experts"


def loaded(gate_up: Tensor) -> nn.Module:
    """As vLLM has a layer's experts, whose kernel packed them: other places within each, filled up with zeros."""
    model = nn.Module()
    place = model
    for name in f"{EXPERTS}.routed_experts".split("."):
        place.add_module(name, nn.Module())
        place = place.get_submodule(name)
    packed = torch.cat([gate_up.flip(1), torch.zeros(len(gate_up), 2, gate_up.shape[2])], dim=1)
    place.register_parameter("w13_weight", nn.Parameter(packed))
    return model


def test_each_expert_is_compared() -> None:
    gate_up = torch.randn(3, 4, 5)
    published = {f"{EXPERTS}.gate_up_proj": gate_up}
    found = compared(loaded(gate_up), published)
    assert (found.whole, found.unread, found.different) == (1, [], [])
    for odd in (gate_up[[1, 0, 2]], gate_up + torch.eye(3)[:, :1, None] * 1e-6):
        name = f"{EXPERTS}.routed_experts.w13_weight"
        assert compared(loaded(odd), published).different == [name]
    found = compared(loaded(gate_up[:2]), {f"{EXPERTS}.gate_up_proj": gate_up})
    assert (found.whole, found.unread) == (0, [f"{EXPERTS}.routed_experts.w13_weight"]), "a part, of several ranks"
