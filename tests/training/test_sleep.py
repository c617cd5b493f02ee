"""A trainer that sleeps gives memory back, and goes on where it was, bit for bit."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from devices import CPU, CUDA, DEVICE
from tensor_bytes import tensor_bytes
from training_helpers import SETTINGS, make_rows, tiny_model, weighted_loss

from headrace.models.packing import pack
from headrace.training.optimizer.parked import Parking
from headrace.training.trainer import HFTrainer

ON_CUDA = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
DEVICES = [pytest.param(CPU, marks=pytest.mark.cpu), pytest.param(CUDA, marks=ON_CUDA)]
DTYPES = [torch.float32, torch.bfloat16]


def trainer(dtype: torch.dtype = torch.float32) -> HFTrainer:
    return HFTrainer(tiny_model(), config=SETTINGS, loss=weighted_loss, total_steps=8, dtype=dtype)


def train(one: HFTrainer, number: int, *, sleeps: bool) -> None:
    """A batch of two micro-batches; with `sleeps`, one that is awake only while it computes, in their midst too."""
    for part in range(2):
        if sleeps:
            one.wake()
        one.accumulate(pack(make_rows([9, 14], seed=2 * number + part)))
        if sleeps:
            one.sleep()
    if sleeps:
        one.wake()
    one.step()
    if sleeps:
        one.sleep()


def state(one: HFTrainer) -> dict[str, torch.Tensor]:
    own: Any = one._weights
    return {name: piece.tensor.cpu() for name, piece in own.state().items()} | {
        f"compute.{name}": tensor.cpu() for name, tensor in one.tensors()
    }


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_goes_on_where_it_was_bit_for_bit(dtype: torch.dtype) -> None:
    usual, by_turns = trainer(dtype), trainer(dtype)
    for one in (usual, by_turns):
        one.keep_reference()
    for number in range(3):
        train(usual, number, sleeps=False)
        train(by_turns, number, sleeps=True)
    by_turns.wake()
    by_turns.wake()  # of one that is awake, nothing
    rows = pack(make_rows([12]))
    assert torch.equal(usual.reference_logprobs(rows), by_turns.reference_logprobs(rows))
    expected, found = state(usual), state(by_turns)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert usual.step_count == by_turns.step_count == 3


@pytest.mark.cpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_on_a_cpu_it_gives_back_what_can_be_worked_out_again(dtype: torch.dtype) -> None:
    """Gradients, between batches, and weights that are the masters in another dtype."""
    one = trainer(dtype)
    train(one, 0, sleeps=False)
    flat = one._whole._flat  # type: ignore[union-attr]
    gradients = flat.grads.nbytes
    compute = flat.compute.nbytes if dtype is torch.bfloat16 else 0
    awake = tensor_bytes()
    one.sleep()
    assert awake - tensor_bytes() == gradients + compute
    one.wake()
    assert tensor_bytes() == awake
    assert not flat.grads.any()


@pytest.mark.cpu
def test_gradients_that_are_still_needed_stay() -> None:
    one = trainer()
    one.accumulate(pack(make_rows([9, 14])))
    awake = tensor_bytes()
    one.sleep()
    assert tensor_bytes() == awake


def test_what_is_discarded_meanwhile_is_not_there_any_more() -> None:
    usual, asleep = trainer(), trainer()
    asleep.accumulate(pack(make_rows([9, 14])))
    asleep.sleep()
    asleep.sleep()
    asleep.discard()
    asleep.wake()
    for one in (usual, asleep):
        train(one, 1, sleeps=False)
    expected, found = state(usual), state(asleep)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_that_is_asked_while_it_sleeps_says_so_and_is_as_it_was(tmp_path: Path, dtype: torch.dtype) -> None:
    """Computing with what was given back ends the process, or fails in words of torch's."""
    usual, asleep = trainer(dtype), trainer(dtype)
    rows = pack(make_rows([9, 14]))
    for one in (usual, asleep):
        one.keep_reference()
        one.accumulate(rows)
    asleep.save(tmp_path / "saved")
    asleep.sleep()
    asked: list[Callable[[], Any]] = [
        lambda: asleep.accumulate(rows),
        lambda: asleep.logprobs(rows),
        lambda: asleep.reference_logprobs(rows),
        lambda: asleep.outputs(rows),
        asleep.step,
        asleep.tensors,
        asleep.keep_reference,
        lambda: asleep.save(tmp_path / "other"),
        lambda: asleep.export(tmp_path / "other"),
        lambda: asleep.saved_reference(),
        lambda: asleep.load(tmp_path / "saved"),
        lambda: asleep.load_reference(tmp_path / "saved"),
        lambda: asleep.begin_from(tmp_path / "saved", masters=True, optimizer=True),
    ]
    for ask in asked:
        with pytest.raises(RuntimeError, match="the trainer is asked while it sleeps; wake it first"):
            ask()
    assert not (tmp_path / "other").exists()
    asleep.wake()
    assert usual.step() == asleep.step()
    expected, found = state(usual), state(asleep)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", DTYPES)
def test_on_a_device_it_leaves_nothing(dtype: torch.dtype) -> None:
    train(trainer(dtype), 0, sleeps=False)  # workspaces of matrix products stay, and are the device's
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    one = trainer(dtype)
    assert one.model.device.type == DEVICE.type == "cuda"
    train(one, 0, sleeps=False)
    one.sleep()
    left = torch.cuda.memory_allocated() - before
    # Steps of the optimiser and the model's own buffers, of some hundred bytes each.
    assert left < 64 * 1024
    assert left < one._whole._flat.master.numel()  # type: ignore[union-attr]
    one.wake()


@pytest.mark.parametrize("device", DEVICES)
def test_whoever_views_what_was_parked_finds_it_again(device: torch.device) -> None:
    values = torch.arange(12.0, device=device)
    view, other = values[3:7].view(2, 2), torch.ones(5, device=device)
    parking = Parking()
    for _ in range(2):
        parking.park([view, values])
        parking.drop([other])
        parking.park([values])  # it sleeps already
        assert other.untyped_storage().nbytes() == 0
        assert values.untyped_storage().nbytes() == (48 if device.type == "cpu" else 0)
        parking.back()
        parking.back()
        assert torch.equal(view.cpu(), torch.tensor([[3.0, 4.0], [5.0, 6.0]]))
        assert torch.equal(other.cpu(), torch.zeros(5))
        view.mul_(1.0)
