"""What a rank of several has of published tensors, by hand, in layers as vLLM makes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from headrace_vllm.comparison import compared
from headrace_vllm.own_share import own_share
from torch import Tensor, nn


def linear(rank: int, ranks: int, outputs: list[int], inputs: int, **more: Any) -> Any:
    """`outputs`, `inputs`: of this rank."""
    own = {"tp_rank": rank, "tp_size": ranks, "output_partition_sizes": outputs, "input_size_per_partition": inputs}
    return SimpleNamespace(**own, **more)


def matrix(outputs: int, inputs: int = 4) -> Tensor:
    return torch.arange(outputs * inputs, dtype=torch.float32).view(outputs, inputs)


def test_outputs_are_cut_each_tensor_by_itself() -> None:
    gate, up = matrix(6), matrix(6) + 100
    layer = linear(1, 3, [2, 2], 4)
    cut = own_share(layer, "layers.0.mlp.gate_up_proj", [gate, up])
    assert torch.equal(torch.cat(cut), torch.cat([gate[2:4], up[2:4]]))
    biases = own_share(layer, "layers.0.mlp.gate_up_proj", [torch.arange(6), torch.arange(6)])
    assert torch.cat(biases).tolist() == [2, 3, 2, 3]


def test_ranks_that_are_more_than_heads_of_keys_share_these() -> None:
    """Four query heads of two numbers and two of keys, by four ranks: ranks 2 and 3 have the second head of keys."""
    queries, keys, values = matrix(8), matrix(4) + 100, matrix(4) + 200
    for rank, head in ((0, 0), (1, 0), (2, 1), (3, 1)):
        layer = linear(rank, 4, [2, 2, 2], 4, num_kv_head_replicas=2)
        cut = own_share(layer, "layers.0.self_attn.qkv_proj", [queries, keys, values])
        own = slice(2 * head, 2 * head + 2)
        assert torch.equal(torch.cat(cut), torch.cat([queries[2 * rank : 2 * rank + 2], keys[own], values[own]]))


def test_inputs_are_cut_and_the_bias_is_whole() -> None:
    layer = linear(1, 2, [3], 2)
    (cut,) = own_share(layer, "layers.0.self_attn.o_proj", [matrix(3)])
    assert torch.equal(cut, matrix(3)[:, 2:])
    (bias,) = own_share(layer, "layers.0.self_attn.o_proj", [torch.arange(3)])
    assert bias.tolist() == [0, 1, 2]


def test_words_are_cut_and_the_last_rank_may_have_fewer_or_none() -> None:
    """Ten words by three ranks of four rows each; a fourth would have padding alone."""
    for begin, end in ((0, 4), (4, 8), (8, 10), (10, 10)):
        indices = SimpleNamespace(org_vocab_start_index=begin, org_vocab_end_index=end)
        layer: Any = SimpleNamespace(shard_indices=indices)
        for name in ("model.embed_tokens", "lm_head"):
            (cut,) = own_share(layer, name, [matrix(10)])
            assert torch.equal(cut, matrix(10)[begin:end])


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.norm", nn.Module()),
        ("layers.0.mixer.in_proj", linear(1, 2, [2], 4)),  # which may be cut in a way of its own
        ("layers.0.mlp.down_proj", linear(0, 1, [4], 4)),
        ("layers.0.self_attn.q_proj", linear(1, 2, [4], 4)),  # every rank has it
    ],
)
def test_what_is_not_shared_out_or_not_known_stays_whole(name: str, layer: Any) -> None:
    (same,) = own_share(layer, name, [matrix(4)])
    assert torch.equal(same, matrix(4))


class Down(nn.Module):
    """A rank's part of a matrix [3, 4], by its inputs."""

    def __init__(self, rank: int, own: Tensor) -> None:
        super().__init__()
        vars(self).update(vars(linear(rank, 2, [3], 2)))
        self.weight = nn.Parameter(own)


def test_a_rank_that_has_anothers_part_differs() -> None:
    model = nn.Module()
    model.add_module("down_proj", Down(1, matrix(3)[:, 2:].clone()))
    found = compared(model, {"down_proj.weight": matrix(3)})
    assert (found.whole, found.unread, found.different) == (1, [], [])
    model.add_module("down_proj", Down(0, matrix(3)[:, 2:].clone()))
    assert compared(model, {"down_proj.weight": matrix(3)}).different == ["down_proj.weight"]
