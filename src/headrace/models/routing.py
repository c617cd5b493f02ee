"""Which experts the tokens of a pass are routed to: told to whoever records it, or replayed from what was recorded.

Router replay (rollout routing replay, R3: Ma et al. 2025, arXiv:2510.11370): an inference engine and a trainer round
differently, and where two experts are about as likely for a token, its router chooses one of them here and the other
there; from there on the token's states, and what later tokens see of it, differ by more than rounding. So the experts
that the engine's routers chose come with the tokens, and the trained policy routes to those: with s the trained
router's logits of a token, and I the recorded experts, expert i in I counts with exp(s_i) / sum over j in I of exp(s_j)
(where the architecture does not renormalise: with the softmax over all experts, at i). So gradients flow into the
router as they do without, and at equal weights the ratio of policies is 1.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

ROUTED_TYPES = ("qwen2_moe", "qwen3_moe", "olmoe")
"""Types of models, as transformers names them, whose routers work as is described here."""
_ROUTERS = ("Qwen2MoeTopKRouter", "Qwen3MoeTopKRouter", "OlmoeTopKRouter")
_ROUTING, _COUNT = "headrace_routing", "headrace_routers"


class Routing(Protocol):
    """Of one pass."""

    def experts(self, layer: int, chosen: Tensor) -> Tensor | None:
        """`layer`: among those that have experts. `chosen` [N, k]: by its router, for each token. What to route to
        instead; None: nothing else."""


class _Pass:
    """What a router is told of the pass that it is in. A copy of the model, which may be made in the midst of one, is
    in none."""

    def __init__(self) -> None:
        self.routing: Routing | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> _Pass:
        return _Pass()


class Replayed:
    """Routes to what was recorded."""

    def __init__(self, experts: Tensor) -> None:
        """[N, layers, k], integers; below 0 where nothing was recorded, and the router chooses."""
        self._layers = experts.long().unbind(1)

    def experts(self, layer: int, chosen: Tensor) -> Tensor:
        """See `Routing.experts`."""
        recorded = self._layers[layer]
        return torch.where(recorded >= 0, recorded, chosen)


class Recorded:
    """Routes as the routers choose, and keeps what that was. Of one pass."""

    def __init__(self) -> None:
        self._layers: list[Tensor] = []

    def experts(self, layer: int, chosen: Tensor) -> None:
        """See `Routing.experts`."""
        self._layers.append(chosen)

    def found(self) -> Tensor | None:
        """[N, layers, k]; None where no layer has experts."""
        return torch.stack(self._layers, dim=1) if self._layers else None


def attach_routing(model: Any) -> int:
    """Have each pass of `model` that is given `routing`, a `Routing`, route by it. How many layers have experts; 0 if
    there are none, or their routers are of another kind. Doing it again changes nothing."""
    base = model.base_model
    if not isinstance(base, nn.Module):  # another library's layers, called as Hugging Face's are
        return 0
    if (known := getattr(base, _COUNT, None)) is not None:
        return int(known)
    count = 0
    for layer in getattr(base, "layers", ()):
        found = [module for module in layer.modules() if is_router(module)]
        if found:
            setattr(found[0], _ROUTING, _Pass())
            layer.self_attn.register_forward_pre_hook(partial(_before, found[0]), with_kwargs=True)
            found[0].register_forward_hook(partial(_instead, count))
            count += 1
    setattr(base, _COUNT, count)
    return count


def is_router(module: nn.Module) -> bool:
    """Whether it routes as is described here."""
    return type(module).__name__ in _ROUTERS


def gates(router: Any, logits: Tensor, experts: Tensor) -> Tensor:
    """What the outputs of `experts` [N, k] count with, from the router's logits [N, experts]; [N, k]."""
    chosen = torch.softmax(logits, dim=-1, dtype=torch.float32).gather(1, experts)
    if router.norm_topk_prob:
        chosen = chosen / chosen.sum(dim=-1, keepdim=True)
    return chosen.to(logits.dtype)


def _before(router: nn.Module, attention: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    """Tell the router of a layer, whose attention comes first. Both are within what is computed again for the backward
    pass where activations are checkpointed; what is said to the layer itself is not."""
    getattr(router, _ROUTING).routing = kwargs.get("routing")


def _instead(number: int, router: Any, args: Any, output: tuple[Tensor, Tensor, Tensor]) -> Any:
    """Of a router; it keeps nothing of the pass."""
    current: _Pass = getattr(router, _ROUTING)
    routing, current.routing = current.routing, None
    if routing is None:
        return None
    logits, _, chosen = output
    experts = routing.experts(number, chosen)
    return None if experts is None else (logits, gates(router, logits, experts), experts)
