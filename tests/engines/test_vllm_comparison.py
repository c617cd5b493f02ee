"""What vLLM's plugin sees of weights that were loaded."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import pytest
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
    assert (found.by_sum, found.unread, found.different) == (1, [], [])
    for odd in (gate_up[[1, 0, 2]], gate_up + torch.eye(3)[:, :1, None] * 1e-6):
        name = f"{EXPERTS}.routed_experts.w13_weight"
        assert compared(loaded(odd), published).different == [name]
    found = compared(loaded(gate_up[:2]), {f"{EXPERTS}.gate_up_proj": gate_up})
    assert (found.by_sum, found.unread) == (0, [f"{EXPERTS}.routed_experts.w13_weight"]), "a part, of several ranks"


NAMES = {
    "model.embed_tokens.weight": (10, 6),
    "model.layers.0.self_attn.q_proj.weight": (8, 6),
    "model.layers.0.self_attn.k_proj.weight": (4, 6),
    "model.layers.0.self_attn.v_proj.weight": (4, 6),
    "model.layers.0.self_attn.q_proj.bias": (8,),
    "model.layers.0.self_attn.k_proj.bias": (4,),
    "model.layers.0.self_attn.v_proj.bias": (4,),
    "model.layers.0.mlp.gate_proj.weight": (5, 6),
    "model.layers.0.mlp.up_proj.weight": (5, 6),
    "model.norm.weight": (6,),
}
Q, K, V, GATE, UP, EMBED = (
    next(name for name in NAMES if f"{part}.weight" in name)
    for part in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens")
)
QKV, GATE_UP = "model.layers.0.self_attn.qkv_proj.weight", "model.layers.0.mlp.gate_up_proj.weight"
HEAD = "lm_head.weight, as its kernel has it"


def published(*more: str) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {name: torch.randn(shape) for name, shape in NAMES.items()} | {name: torch.randn(10, 6) for name in more}


class Packed:
    """A kernel that has the matrix for itself."""

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix.clone()

    def __call__(self, x: Tensor, weight: Tensor, bias: None) -> Tensor:
        return x @ self._matrix.t()


def served(tensors: Mapping[str, Tensor], *, packed: bool) -> nn.Module:
    """As vLLM has a dense model: projections are stacked, the vocabulary is filled up with zeros, the head is tied
    unless it has a weight. `packed`: kernels have the projections and the head."""
    model = nn.Module()
    model.packed_modules_mapping = {  # type: ignore[assignment]
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    def put(name: str, value: Tensor) -> nn.Module:
        place, (*way, last) = model, name.split(".")
        for part in way:
            if not hasattr(place, part):
                place.add_module(part, nn.Module())
            place = place.get_submodule(part)
        place.register_parameter(last, nn.Parameter(value.clone()))
        return place

    layer = "model.layers.0."
    for stack, parts in (("self_attn.qkv_proj", "qkv"), ("mlp.gate_up_proj", ("gate", "up"))):
        parent = stack.partition(".")[0]
        matrix = torch.cat([tensors[f"{layer}{parent}.{part}_proj.weight"] for part in parts])
        place = put(f"{layer}{stack}.weight", torch.empty(0) if packed else matrix)
        if packed:
            place.cpu_linear = Packed(matrix)  # type: ignore[assignment]
    biases = [tensors[f"{layer}self_attn.{part}_proj.bias"] for part in "qkv"]
    put(f"{layer}self_attn.qkv_proj.bias", torch.cat(biases))
    put("model.norm.weight", tensors["model.norm.weight"])
    embedding = torch.cat([tensors[EMBED], torch.zeros(2, 6)])
    put("model.embed_tokens.weight", embedding)
    head = embedding
    if "lm_head.weight" in tensors:
        head = torch.cat([tensors["lm_head.weight"], torch.zeros(2, 6)])
        place = put("lm_head.weight", head)
    else:
        place = nn.Module()
        model.add_module("lm_head", place)
        place.weight = model.get_submodule("model.embed_tokens").weight
    if packed:
        place.cpu_linear = Packed(head)  # type: ignore[assignment]
    return model


@pytest.mark.parametrize("more", [(), ("lm_head.weight",)], ids=["tied", "untied"])
def test_what_was_loaded_is_equal(more: tuple[str, ...]) -> None:
    tensors = published(*more)
    own = len(more)
    found = compared(served(tensors, packed=False), tensors, "0.7")
    assert (found.version, found.whole, found.in_part, found.unread, found.different) == ("0.7", 5 + own, 0, [], [])
    found = compared(served(tensors, packed=True), tensors)
    assert (found.whole, found.in_part, found.unread, found.different) == (3 + own, 3, [], [])


def one_wrong(name: str, *place: int) -> Callable[[dict[str, Tensor]], None]:
    def spoil(tensors: dict[str, Tensor]) -> None:
        tensors[name][place] = torch.nextafter(tensors[name][place], torch.tensor(9.0))

    return spoil


def exchanged(one: str, other: str) -> Callable[[dict[str, Tensor]], None]:
    """No bit is lost: a sum knows nothing of it."""

    def spoil(tensors: dict[str, Tensor]) -> None:
        tensors[one], tensors[other] = tensors[other], tensors[one]

    return spoil


def two_elements(tensors: dict[str, Tensor]) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"][[1, 0, 2, 3, 4, 5]]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize(
    ("spoil", "different"),
    [
        (one_wrong(Q, 0, 0), [QKV]),
        (one_wrong(K, 3, 5), [QKV]),
        (one_wrong(V, 3, 5), [QKV]),
        (one_wrong(GATE, 2, 1), [GATE_UP]),
        (one_wrong(UP, 4, 0), [GATE_UP]),
        (one_wrong("model.layers.0.self_attn.k_proj.bias", 1), ["model.layers.0.self_attn.qkv_proj.bias"]),
        (one_wrong("model.norm.weight", 5), ["model.norm.weight"]),
        (exchanged(K, V), [QKV]),
        (exchanged(GATE, UP), [GATE_UP]),
        (two_elements, ["model.norm.weight"]),
    ],
)
def test_one_wrong_element_is_found_and_one_in_another_place(
    spoil: Callable[[dict[str, Tensor]], None], different: list[str], *, packed: bool
) -> None:
    odd = published()
    spoil(odd)
    assert compared(served(odd, packed=packed), published()).different == different


@pytest.mark.parametrize("more", [(), ("lm_head.weight",)], ids=["tied", "untied"])
def test_a_head_that_its_kernel_has_of_the_weights_before_is_found(more: tuple[str, ...]) -> None:
    """Though the parameter beside it is new."""
    tensors, own = published(*more), "lm_head.weight" if more else EMBED
    model = served(tensors, packed=True)
    old = torch.cat([tensors[own], torch.zeros(2, 6)])
    old[9, 3] += 1e-6
    model.get_submodule("lm_head").cpu_linear = Packed(old)  # type: ignore[assignment]
    assert compared(model, tensors).different == [HEAD]
    odd = published(*more)
    odd[own][9, 3] += 1e-6
    assert compared(served(odd, packed=False), tensors).different == [
        "lm_head.weight" if more else "model.embed_tokens.weight"
    ]


class Mapper:
    """As vLLM's, which stacks names itself."""

    def apply_list(self, names: list[str]) -> list[str]:
        return [re.sub("(?<=[.])([qkv])_proj", "qkv_proj", re.sub("(gate|up)_proj", "gate_up_proj", n)) for n in names]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
@pytest.mark.parametrize("maps", [False, True])
def test_the_order_in_which_tensors_are_published_is_no_matter(*, packed: bool, maps: bool) -> None:
    tensors = published()
    exchange = {**tensors, K: tensors[V], V: tensors[K]}
    for loaded, different in ((tensors, []), (exchange, [QKV])):
        model = served(loaded, packed=packed)
        if maps:
            model.hf_to_vllm_mapper = Mapper()  # type: ignore[assignment]
        found = compared(model, dict(sorted(tensors.items())))
        assert (found.by_sum, found.different) == (0, different)
        model.packed_modules_mapping = {}  # type: ignore[assignment]
        found = compared(model, dict(sorted(tensors.items())))
        assert found.different == [], "their order is not known"
        assert (found.by_sum > 0, bool(found.unread)) == (maps, not maps)


def test_a_part_of_several_ranks_is_not_compared() -> None:
    tensors = published()
    half = tensors | {EMBED: tensors[EMBED][:4]}
    model = served(half, packed=False)
    model.get_submodule("model.embed_tokens").weight.data = tensors[EMBED][:4]
    assert compared(model, tensors).unread == ["model.embed_tokens.weight"]


def test_what_is_kept_in_another_shape_is_compared_by_its_sum() -> None:
    tensors = published()
    model = served(tensors, packed=False)
    place = model.get_submodule("model.layers.0.mlp.gate_up_proj")
    place.weight = nn.Parameter(place.weight.detach().t())
    found = compared(model, tensors)
    assert (found.by_sum, found.different) == (1, [])
    place.weight.data[2, 3] += 1e-6
    assert compared(model, tensors).different == [GATE_UP]
