"""A model whose weights are read from its files part by part is the model that is loaded whole."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from training_helpers import CONFIGS, tiny_model

from headrace.models.file_weights import FileWeights
from headrace.models.loading import load_causal_lm, load_value_model
from headrace.models.packed_lm import PackedLM
from headrace.models.skeleton import causal_lm_skeleton, value_model_skeleton
from headrace.models.stored_model import StoredModel

CPU = torch.device("cpu")
FILE = "model.safetensors"


def saved(name: str, folder: Path, limit: int = 5_000_000_000) -> Path:
    """In bfloat16, in files of at most so many bytes."""
    model = tiny_model(name).cpu()
    weights = dict(model.named_parameters())
    stored = StoredModel(model, torch.bfloat16, weights, limit=limit)
    stored.write(folder, ((key, (0,) * one.dim(), one.detach()) for key, one in weights.items()))
    stored.finish(folder, None)
    return folder


def require_equal(weights: FileWeights, model: torch.nn.Module) -> None:
    """All of each parameter, and a part of it."""
    for key, one in model.named_parameters():
        whole = torch.empty(one.shape)
        weights.read(key, (0,) * one.dim(), whole)
        assert torch.equal(whole, one), key
        begin = tuple(length // 3 for length in one.shape)
        part = one[tuple(slice(first, first + max(1, first)) for first in begin)]
        found = torch.empty(part.shape)
        weights.read(key, begin, found)
        assert torch.equal(found, part), key


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("limit", [5_000_000_000, 4_000])
def test_parts_and_passes_are_those_of_the_whole_model(tmp_path: Path, name: str, limit: int) -> None:
    saved(name, tmp_path, limit)
    found = causal_lm_skeleton(tmp_path, CPU)
    assert found is not None
    model, weights = found
    whole = load_causal_lm(tmp_path, dtype=torch.float32, device=CPU)
    assert model.config.to_dict() == whole.config.to_dict()
    assert all(one.is_meta for one in model.parameters())
    require_equal(weights, whole)
    buffers = dict(whole.named_buffers())
    assert buffers.keys() == dict(model.named_buffers()).keys()
    assert all(torch.equal(one, buffers[key]) for key, one in model.named_buffers())
    with weights.lent(model):
        lent = PackedLM(model, CPU)
        tokens, positions = torch.arange(3, 9), torch.tensor([0, 1, 2, 3, 0, 1])
        with torch.no_grad():
            logits = lent.all_logits(tokens, positions, [4, 2])
    own = PackedLM(whole)
    assert (lent.forward_kind, lent.has_plain_head) == (own.forward_kind, own.has_plain_head)
    with torch.no_grad():
        assert torch.equal(logits, own.all_logits(tokens, positions, [4, 2]))
    assert all(one.is_meta for one in model.parameters())


def test_a_value_model_has_a_head_of_zeros_where_its_files_have_that_of_another(tmp_path: Path) -> None:
    found = value_model_skeleton(saved("llama", tmp_path), CPU)
    assert found is not None
    require_equal(found[1], load_value_model(tmp_path, dtype=torch.float32, device=CPU))


@pytest.mark.parametrize("odd", ["another name", "another shape", "one more"])
def test_files_that_hold_something_else_are_for_who_loads_the_whole(tmp_path: Path, odd: str) -> None:
    saved("llama", tmp_path)
    tensors = load_file(tmp_path / FILE)
    norm = tensors["model.norm.weight"]
    if odd != "one more":
        del tensors["model.norm.weight"]
    changed = {"another name": ("norm.weight", norm), "another shape": ("model.norm.weight", norm[:-1])}
    name, tensor = changed.get(odd, ("model.more.weight", norm))
    save_file({**tensors, name: tensor.clone()}, tmp_path / FILE)
    assert causal_lm_skeleton(tmp_path, CPU) is None
