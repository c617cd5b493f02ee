"""Which experts a pass routes to, when it is told."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from models_helpers import SHAPE, VOCAB
from transformers import AutoModelForCausalLM, OlmoeConfig, PreTrainedConfig, Qwen2MoeConfig, Qwen3MoeConfig

from headrace.models.logprobs import token_logprobs
from headrace.models.packed_lm import PackedForward, PackedLM
from headrace.models.packing import PackRow, pack
from headrace.models.routing import ROUTED_TYPES, Recorded, attach_routing, gates

EXPERTS, CHOSEN = 6, 2
_COMMON = {**SHAPE, "num_experts": EXPERTS, "num_experts_per_tok": CHOSEN}
CONFIGS: dict[str, PreTrainedConfig] = {
    "qwen2_moe": Qwen2MoeConfig(**_COMMON, moe_intermediate_size=16, shared_expert_intermediate_size=16),
    "qwen3_moe": Qwen3MoeConfig(**_COMMON, moe_intermediate_size=16, norm_topk_prob=True),
    "olmoe": OlmoeConfig(**_COMMON),
}
LAYERS = SHAPE["num_hidden_layers"]


def model_of(kind: str) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(copy.deepcopy(CONFIGS[kind])).eval()


def routers_of(model: Any) -> list[Any]:
    return [layer.mlp.gate for layer in model.model.layers]


def chosen_by(model: Any, tokens: np.ndarray) -> np.ndarray:
    """[T, layers, k]: by the model's own pass over one sample."""
    found: list[torch.Tensor] = []
    hooks = [
        router.register_forward_hook(lambda router, args, output: found.append(output[2]))
        for router in routers_of(model)
    ]
    model.set_attn_implementation("sdpa")
    model(input_ids=torch.from_numpy(tokens)[None], use_cache=False)
    for hook in hooks:
        hook.remove()
    return torch.stack(found, 1).numpy().astype(np.uint8)


def rows(lengths: list[int], seed: int = 0) -> list[PackRow]:
    rng = np.random.default_rng(seed)
    return [PackRow(rng.integers(0, VOCAB, n), np.arange(n) > 1) for n in lengths]


def routed(row: PackRow, experts: np.ndarray) -> PackRow:
    return PackRow(row.tokens, row.mask, experts=experts)


def others(length: int, seed: int = 1) -> np.ndarray:
    """Experts that no router chose: [length, layers, k], distinct."""
    rng = np.random.default_rng(seed)
    found = [[rng.permutation(EXPERTS)[:CHOSEN] for _ in range(LAYERS)] for _ in range(length)]
    return np.array(found, dtype=np.uint8)


def test_what_experts_count_with() -> None:
    """Of probabilities 0.1, 0.2, 0.3 and 0.4 the first and the third: 1/4 and 3/4 where they are normalised."""
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]]).log()
    experts = torch.tensor([[0, 2]])
    router = torch.nn.Module()
    router.norm_topk_prob = True
    torch.testing.assert_close(gates(router, logits, experts), torch.tensor([[0.25, 0.75]]))
    router.norm_topk_prob = False
    torch.testing.assert_close(gates(router, logits, experts), torch.tensor([[0.1, 0.3]]))


@pytest.mark.parametrize("kind", ROUTED_TYPES)
def test_to_replay_what_the_routers_choose_changes_nothing(kind: str) -> None:
    model, given = model_of(kind), rows([9, 5, 14])
    experts = [chosen_by(model, row.tokens) for row in given]
    lm = PackedLM(model)
    assert lm.forward_kind is PackedForward.SEGMENTS
    free = token_logprobs(lm, pack(given))
    told = token_logprobs(lm, pack([routed(*each) for each in zip(given, experts, strict=True)]))
    torch.testing.assert_close(told, free, rtol=0, atol=1e-6)
    assert all(
        value.routing is None
        for router in routers_of(model)
        for name, value in vars(router).items()
        if "routing" in name
    )


def test_a_model_that_is_copied_in_the_midst_of_a_pass_takes_nothing_of_it_along() -> None:
    """As an engine's is, for a version beside the one that it serves, while it decodes: the pass has its KV cache."""

    class OfEngine(Recorded):
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            raise AssertionError("it was copied")

    model = model_of("qwen3_moe")
    attach_routing(model)
    copies: list[Any] = []
    hooks = [
        router.register_forward_pre_hook(lambda router, args: copies.append(copy.deepcopy(model)))
        for router in routers_of(model)
    ]
    tokens, current = torch.arange(5)[None], OfEngine()
    model(input_ids=tokens, use_cache=False, routing=current)
    for hook in hooks:
        hook.remove()
    found = current.found()
    assert found is not None
    assert found.shape == (5, LAYERS, CHOSEN)
    assert len(copies) == LAYERS
    for router in routers_of(copies[0]):
        router(torch.ones(1, SHAPE["hidden_size"]))
    assert torch.equal(current.found(), found)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ROUTED_TYPES)
def test_tokens_go_where_they_are_told(kind: str) -> None:
    """Router rows so large that they choose these experts whatever comes, against rows that are told them."""
    wanted = np.array([4, 1])
    told_model = model_of(kind)
    forced = copy.deepcopy(told_model)
    for router in routers_of(forced):

        def choose(hidden: torch.Tensor, router: Any = router) -> Any:
            logits = hidden.reshape(-1, hidden.shape[-1]) @ router.weight.T
            experts = torch.from_numpy(wanted).expand(len(logits), CHOSEN)
            return logits, gates(router, logits, experts), experts

        router.forward = choose
    given = rows([9, 5])
    experts = [np.tile(wanted.astype(np.uint8), (len(row), LAYERS, 1)) for row in given]
    expected = token_logprobs(PackedLM(forced), pack(given))
    lm = PackedLM(told_model)
    told = token_logprobs(lm, pack([routed(*each) for each in zip(given, experts, strict=True)]))
    torch.testing.assert_close(told, expected, rtol=0, atol=1e-6)
    assert (told - token_logprobs(lm, pack(given))).abs().max() > 1e-2


def test_what_is_not_recorded_is_routed_freely() -> None:
    """The last token's experts are never known, and nothing depends on them."""
    lm = PackedLM(model_of("qwen3_moe"))
    (row,) = rows([9])
    micro = pack([routed(row, others(8))])
    assert micro.experts is not None
    assert micro.experts[8].tolist() == [[-1] * CHOSEN] * LAYERS
    whole = token_logprobs(lm, pack([routed(row, others(9))]))
    torch.testing.assert_close(token_logprobs(lm, micro), whole, rtol=0, atol=1e-6)
    free = token_logprobs(lm, pack([routed(row, others(9)[:0])]))
    torch.testing.assert_close(free, token_logprobs(lm, pack([row])), rtol=0, atol=1e-6)


def test_samples_share_a_beginning_only_where_it_is_routed_alike() -> None:
    lm = PackedLM(model_of("qwen3_moe"))
    (row,) = rows([12])
    first, second = others(11, 1), others(11, 2)
    second[:6] = first[:6]
    samples = [routed(row, first), routed(row, second), routed(row, first)]
    together = token_logprobs(lm, pack(samples)).split(12)
    for sample, found in zip(samples, together, strict=True):
        torch.testing.assert_close(found, token_logprobs(lm, pack([sample])), rtol=0, atol=1e-5)
    assert (together[0] - together[1]).abs().max() > 1e-3


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_flow_into_the_router(checkpointing: bool) -> None:
    """As finite differences have it; also where layers are computed again for the backward pass."""
    model = model_of("qwen3_moe")
    lm = PackedLM(model)
    if checkpointing:
        model.train()
        model.activation_checkpointing_enable({"use_reentrant": False})
    given = pack([routed(row, others(len(row) - 1)) for row in rows([9, 14])])
    weight = routers_of(model)[0].weight
    loss = token_logprobs(lm, given).sum()
    token_logprobs(lm, pack(rows([4])))  # another pass, which routes freely, before this one goes back
    loss.backward()
    grad = weight.grad
    assert grad is not None
    assert grad.abs().max() > 1e-3
    direction = grad / grad.norm()
    with torch.no_grad():
        weight += 1e-2 * direction
        above = token_logprobs(lm, given).sum()
        weight -= 2e-2 * direction
        below = token_logprobs(lm, given).sum()
    assert float(above - below) / 2e-2 == pytest.approx(float(grad.norm()), rel=1e-2)
    assert loss.isfinite()


def test_experts_of_another_model_are_refused() -> None:
    lm = PackedLM(model_of("qwen3_moe"))
    (row,) = rows([9])
    beyond = others(8)
    beyond[3, 0, 0] = EXPERTS
    for wrong in (others(8)[:, :1], beyond):
        with pytest.raises(ValueError, match="the model routes to 2 of 6 in 2 layers"):
            token_logprobs(lm, pack([routed(row, wrong)]))
    plain = PackedLM(AutoModelForCausalLM.from_config(Qwen3MoeConfig(**{**_COMMON, "mlp_only_layers": [0, 1]})))
    with pytest.raises(ValueError, match="cannot be told"):
        token_logprobs(plain, pack([routed(row, others(8))]))


def test_layers_without_experts_are_not_counted() -> None:
    config = Qwen3MoeConfig(**{**_COMMON, "mlp_only_layers": [0]}, moe_intermediate_size=16)
    model = AutoModelForCausalLM.from_config(config)
    assert [attach_routing(model), attach_routing(model)] == [1, 1]
