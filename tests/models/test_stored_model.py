"""A model's folder that ranks write together is the one that transformers writes of the whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise, product
from math import prod
from pathlib import Path

import pytest
import torch
from allocated import Allocated
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor
from training_helpers import CONFIGS, load_plainly, tiny_model
from transformers import PreTrainedModel

from headrace.models import parted_files
from headrace.models.parted_files import Box, FileTensor, PartedFiles
from headrace.models.stored_model import StoredModel

Cuts = list[list[int]]
"""Of each dimension, where parts begin and end."""


def cut(name: str, tensor: Tensor, cuts: Cuts) -> Iterator[Box]:
    for spans in product(*(list(pairwise(one)) for one in cuts)):
        begin = tuple(first for first, _ in spans)
        yield name, begin, tensor[tuple(slice(*span) for span in spans)]


def ranks_of(model: PreTrainedModel) -> list[list[Box]]:
    """What three ranks have, in float32: one a part of the rows, two halves of the columns of the others."""
    ranks: list[list[Box]] = [[], [], []]
    for name, parameter in model.named_parameters():
        tensor = parameter.detach()
        rows, columns = len(tensor), tensor.shape[1] if tensor.dim() > 1 else 0
        if not columns:
            ranks[0].append((name, (0,), tensor))
            continue
        third = rows // 3
        zeros = (0,) * (tensor.dim() - 2)
        ranks[0].append((name, (0, 0, *zeros), tensor[:third]))
        ranks[1].append((name, (third, 0, *zeros), tensor[third:, : columns // 2]))
        ranks[2].append((name, (third, columns // 2, *zeros), tensor[third:, columns // 2 :]))
    return ranks


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("limit", [5_000_000_000, 4_000])
def test_parts_of_ranks_become_the_model_that_transformers_would_have_written(
    tmp_path: Path, name: str, limit: int
) -> None:
    """Tied weights once, each expert under a name of its own; in one file, or in several with an index."""
    model = tiny_model(name).cpu()
    stored = StoredModel(model, torch.bfloat16, {each for each, _ in model.named_parameters()}, limit=limit)
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    written = 0
    for number, boxes in reversed(
        [*enumerate(ranks_of(model))]
    ):  # whoever leads is the last, and the others did not wait
        written += stored.write(parted, boxes)
        written += stored.finish(parted, None) if number == 0 else 0
    assert written == stored.size
    model.to(torch.bfloat16).save_pretrained(whole)

    expected = load_file(whole / "model.safetensors")
    files = sorted(parted.glob("*.safetensors"))
    found = {key: tensor for file in files for key, tensor in load_file(file).items()}
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], tensor) and found[key].dtype == tensor.dtype for key, tensor in expected.items())
    assert [file.name for file in files] == ["model.safetensors"] or len(files) > 1
    if len(files) > 1:
        index = json.loads((parted / "model.safetensors.index.json").read_text())
        assert index["weight_map"] == {key: file.name for file in files for key in load_file(file)}
        assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in expected.values())
    for config in ("config.json", "generation_config.json"):
        assert json.loads((parted / config).read_text()) == json.loads((whole / config).read_text())
    loaded = dict(load_plainly(parted).named_parameters())
    assert all(torch.equal(loaded[key].cpu(), one) for key, one in model.named_parameters())


shapes = st.lists(st.integers(1, 5), min_size=0, max_size=4)


@st.composite
def cuts_of(draw: st.DrawFn, shape: list[int]) -> Cuts:
    return [sorted({0, length, *draw(st.lists(st.integers(0, length), max_size=2))}) for length in shape]


@given(st.data(), shapes)
@settings(max_examples=60, deadline=None)
def test_however_a_tensor_is_cut_up_it_is_written_whole(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, shape: list[int]
) -> None:
    """Stored in boxes, and written in other ones, a few numbers at a time."""
    folder = tmp_path_factory.mktemp("parts")
    tensor = torch.arange(float(prod(shape))).reshape(shape)
    boxes = list(cut("whole", tensor, data.draw(cuts_of(shape))))
    stored = [
        FileTensor(str(number), tuple(box.shape), torch.float32, "whole", begin, tuple(box.shape))
        for number, (_, begin, box) in enumerate(boxes)
    ]
    files = PartedFiles(stored, "t.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parted_files, "AT_ONCE", 8)
        count = sum(files.write(folder, [one]) for one in cut("whole", tensor, data.draw(cuts_of(shape))))
    files.finish(folder)
    assert count == files.size == tensor.nbytes
    found = load_file(folder / "t.safetensors")
    assert all(torch.equal(found[str(number)], box) for number, (_, _, box) in enumerate(boxes))


def test_what_is_written_needs_no_more_memory_than_a_few_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parted_files, "AT_ONCE", 4_000)
    tensor = torch.rand(1_000, 100)
    files = PartedFiles([FileTensor.of_whole("t", (1_000, 200), torch.bfloat16)], "t.safetensors")
    with Allocated() as allocated:
        files.write(tmp_path, [("t", (0, 100), tensor)])
        files.finish(tmp_path)
    assert 0 < allocated.peak <= 4_000
    assert torch.equal(load_file(tmp_path / "t.safetensors")["t"][:, 100:], tensor.bfloat16())
