"""A publication as a folder that a server reads as a model's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from headrace.weights.disk import DiskPublisher
from headrace.weights.model_folder import MADE, model_folder
from headrace.weights.plane import WeightError, WeightOffer, WeightPublisher
from headrace.weights.shm import ShmPublisher
from headrace.weights.version import Version


def tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "model.a.weight": torch.randn(3, 5, generator=generator),
        "model.b.weight": torch.randn(7, generator=generator).to(torch.bfloat16),
        "model.none": torch.empty(0, 4),
        "model.c.bias": torch.randn(1, generator=generator),
    }


def offered(publisher: WeightPublisher, number: int) -> WeightOffer:
    publisher.publish(Version(1, number), tensors(number).items())
    offer = publisher.receiver().offer()
    assert offer is not None
    return offer


def require_holds(folder: Path, number: int) -> None:
    (file,) = folder.glob("*.safetensors")
    found = load_file(file)
    wanted = tensors(number)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("kind", [ShmPublisher, DiskPublisher])
def test_it_holds_what_was_published(kind: type[WeightPublisher], tmp_path: Path) -> None:
    publisher = kind(tmp_path)  # type: ignore[call-arg]
    for number in (3, 4):
        require_holds(model_folder(offered(publisher, number)), number)


def test_each_expert_has_a_name_of_its_own(tmp_path: Path) -> None:
    """As in the checkpoint format: of the rows of `gate_up_proj` the first half is the gate's."""
    name = "model.layers.0.mlp.experts"
    gate_up, down = torch.randn(3, 8, 5), torch.randn(3, 5, 4)
    given = {f"{name}.gate_up_proj": gate_up, "model.norm.weight": torch.randn(5), f"{name}.down_proj": down}
    publisher = ShmPublisher(tmp_path)
    publisher.publish(Version(1, 0), given.items())
    offer = publisher.receiver().offer()
    assert offer is not None
    found = load_file(model_folder(offer) / "model.safetensors")
    expected = {"model.norm.weight": given["model.norm.weight"]}
    for expert in range(3):
        expected |= {
            f"{name}.{expert}.gate_proj.weight": gate_up[expert, :4],
            f"{name}.{expert}.up_proj.weight": gate_up[expert, 4:],
            f"{name}.{expert}.down_proj.weight": down[expert],
        }
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[each], tensor) for each, tensor in expected.items())


def test_it_is_made_once_and_the_newest_two_stay(tmp_path: Path) -> None:
    publisher = ShmPublisher(tmp_path)
    first = offered(publisher, 9)
    made = model_folder(first) / "model.safetensors"
    before = made.stat().st_ino
    assert model_folder(first) / "model.safetensors" == made
    assert made.stat().st_ino == before
    for number in (10, 11):
        model_folder(offered(publisher, number))
    assert sorted(path.name for path in (tmp_path / MADE).iterdir()) == ["1-10", "1-11"]


def test_a_version_that_was_overtaken_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    publisher = ShmPublisher(tmp_path)
    first = offered(publisher, 1)
    for number in (2, 3):
        offered(publisher, number)
    with pytest.raises(WeightError, match=r"is not whole in .* any more: a newer one was published"):
        model_folder(first)
    assert list((tmp_path / MADE).iterdir()) == []


def test_weights_that_do_not_leave_the_process_are_refused(tmp_path: Path) -> None:
    offer = replace(offered(ShmPublisher(tmp_path), 1), transport="memory")
    with pytest.raises(WeightError, match="weights come by 'memory', and a server takes them by shm and disk alone"):
        model_folder(offer)
