"""The copy that a trainer keeps of its own weights takes the memory of one, also while it computes with it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from tensor_bytes import tensor_bytes
from training_helpers import SETTINGS, make_rows, tiny_model, weighted_loss

from headrace.models.packing import pack
from headrace.training.optimizer import flat_buffers
from headrace.training.optimizer.exchanged import exchanged
from headrace.training.trainer import HFTrainer

DTYPES = [torch.float32, torch.bfloat16]


def trainer(dtype: torch.dtype) -> HFTrainer:
    return HFTrainer(tiny_model(), config=SETTINGS, loss=weighted_loss, total_steps=8, dtype=dtype)


def stepped(dtype: torch.dtype) -> HFTrainer:
    """With its beginning kept."""
    one = trainer(dtype)
    one.keep_reference()
    one.accumulate(pack(make_rows([9, 14])))
    one.step()
    return one


def weights(one: HFTrainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in one.tensors()}


def masters(one: HFTrainer) -> dict[str, torch.Tensor]:
    return {name: piece.tensor for name, piece in one._weights.state().items()}


@pytest.mark.parametrize("dtype", DTYPES)
def test_within_a_pass_the_copy_holds_the_weights(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat_buffers, "_AT_ONCE", 1000)
    one = stepped(dtype)
    reference: Any = one._reference
    first, now, kept = weights(trainer(dtype)), weights(one), [tensor.clone() for tensor in reference.tensors]
    before = tensor_bytes()
    with suppress(ZeroDivisionError), reference.in_place(one._weights):
        assert tensor_bytes() - before <= 1000 * dtype.itemsize
        assert all(torch.equal(first[name], tensor) for name, tensor in one.tensors())
        raise ZeroDivisionError
    assert all(torch.equal(now[name], tensor) for name, tensor in one.tensors())
    assert all(map(torch.equal, kept, reference.tensors))


def test_a_newer_copy_takes_the_place_of_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    one = stepped(torch.float32)
    own: Any = one._weights
    copy, seen = own.copy, list[int]()

    def copied() -> list[torch.Tensor]:
        made: list[torch.Tensor] = copy()
        seen.append(tensor_bytes())
        return made

    before = tensor_bytes()
    monkeypatch.setattr(own, "copy", copied)
    one.keep_reference()
    assert seen == [before]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_saved_while_a_pass_is_under_the_copy_is_what_was_there(dtype: torch.dtype, tmp_path: Path) -> None:
    """Though it is written without a copy beside training: passes of the reference go on."""
    one = stepped(dtype)
    now, first = weights(one), weights(trainer(dtype))
    state = {name: tensor.clone() for name, tensor in masters(one).items()}
    saved, kept, reference = one.saved(copies=False), one.saved_reference(), one._reference
    with reference.in_place(one._weights):
        saved.write(tmp_path / "all")
        kept.write(tmp_path / "reference")
    again = trainer(dtype)
    again.keep_reference()
    again.load(tmp_path / "all")
    again.load_reference(tmp_path / "reference")
    assert all(torch.equal(now[name], tensor) for name, tensor in again.tensors())
    assert all(torch.equal(state[name], tensor) for name, tensor in masters(again).items())
    with again._reference.in_place(again._weights):
        assert all(torch.equal(first[name], tensor) for name, tensor in again.tensors())


def test_tensors_of_any_layout_are_exchanged() -> None:
    own = [torch.arange(6.0).view(2, 3).t(), torch.empty(0, 4), torch.nn.Parameter(torch.ones(5))]
    others = [torch.full((3, 2), -1.0), torch.empty(0, 4), torch.zeros(5)]
    before = [tensor.detach().clone() for tensor in own + others]
    with exchanged(own, others):
        assert all(map(torch.equal, [*others, *own], before))
    assert all(map(torch.equal, [*own, *others], before))
    with exchanged([], []):
        pass
