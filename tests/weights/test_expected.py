"""Which tensors a version must bring, and how they come to an engine's dtype."""

from __future__ import annotations

import pytest
import torch
from engines_helpers import rounded, tiny_model
from tensor_bytes import tensor_bytes

from headrace.weights.expected import WeightSchema
from headrace.weights.plane import WeightError


def test_of_another_dtype_each_is_brought_there_as_it_is_asked_for() -> None:
    """All at once would be a second copy of the model."""
    schema = WeightSchema(rounded(tiny_model("llama"), torch.bfloat16))
    given = {name: parameter.detach() for name, parameter in tiny_model("llama", seed=1).named_parameters()}
    before = tensor_bytes()
    found = schema.check(given)
    assert tensor_bytes() == before
    assert found.keys() == given.keys()
    assert "model.norm.weight" in found
    assert tensor_bytes() == before, "asking whether it is there brings nothing"
    for name, tensor in found.items():
        assert torch.equal(tensor, given[name].bfloat16())


def test_one_that_is_so_already_is_not_copied() -> None:
    model = tiny_model("qwen3")
    found = WeightSchema(model).check(dict(model.named_parameters()) | {"lm_head.weight": model.lm_head.weight})
    assert {name: tensor.data_ptr() for name, tensor in found.items()} == {
        name: parameter.data_ptr() for name, parameter in model.named_parameters()
    }
    with pytest.raises(WeightError, match="the publication does not fit the model: it lacks 1 tensors"):
        WeightSchema(model).check({name: one for name, one in model.named_parameters() if name != "model.norm.weight"})
