from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from devices import DEVICE
from training_helpers import CONFIGS, gradients, load_plainly, make_rows, make_trainer, state, weights

from headrace.models.packing import pack
from headrace.training.pieces import Piece
from headrace.training.protocol import CheckpointError, StepReport
from headrace.training.state import read_boxes, write_part
from headrace.training.trainer import HFTrainer


def train(trainer: HFTrainer, first: int, last: int) -> list[StepReport]:
    """Steps `first` to `last` - 1 of a run whose batches depend on the step only."""
    reports = []
    for step in range(first, last):
        rows = make_rows([9, 4, 17, 5], seed=step)
        trainer.accumulate(pack(rows[:2]))
        trainer.accumulate(pack(rows[2:]))
        reports.append(trainer.step())
    return reports


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loaded_trainer_goes_on_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    straight = make_trainer(dtype=dtype)
    train(straight, 0, 3)
    straight.save(tmp_path / "state")
    noise = torch.rand(5)
    expected = train(straight, 3, 6)

    resumed = make_trainer(dtype=dtype, seed=99)
    train(resumed, 50, 52)
    resumed.accumulate(pack(make_rows([30], seed=7)))
    resumed.load(tmp_path / "state")
    assert torch.equal(torch.rand(5), noise), "torch's generator too"
    assert resumed.step_count == 3
    assert train(resumed, 3, 6) == expected
    for (name, a), (_, b) in zip(straight.tensors(), resumed.tensors(), strict=True):
        assert torch.equal(a, b), name
    for part in ("master", "exp_avg_sq"):
        loaded = state(resumed, part)
        assert all(torch.equal(tensor, loaded[name]) for name, tensor in state(straight, part).items())


def test_a_skipped_step_is_remembered_apart_from_updates(tmp_path: Path) -> None:
    straight = make_trainer()
    straight.step()  # on nothing: neither
    straight.accumulate(pack(make_rows([9], seed=0)))
    next(iter(gradients(straight).values())).view(-1)[0] = torch.nan
    assert straight.step().skipped
    train(straight, 1, 3)
    straight.save(tmp_path)
    record = json.loads((tmp_path / "trainer.json").read_text())
    assert (record["step_count"], record["updates"]) == (3, 2)
    resumed = make_trainer()
    resumed.load(tmp_path)
    assert train(resumed, 3, 5) == train(straight, 3, 5)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_export_is_a_plain_transformers_model(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    trainer = make_trainer(name, dtype=dtype)
    train(trainer, 0, 2)
    trainer.export(tmp_path)
    loaded = load_plainly(tmp_path)
    assert {p.dtype for p in loaded.parameters()} == {dtype}
    saved = dict(loaded.named_parameters())
    for key, tensor in trainer.tensors():
        assert torch.equal(saved[key], tensor), key
    assert "headrace" not in (tmp_path / "config.json").read_text()
    row = make_rows([20])[0]
    tokens = torch.as_tensor(row.tokens).to(DEVICE)
    logits = loaded(input_ids=tokens[None]).logits[0, :-1].float()
    expected = torch.log_softmax(logits, -1).gather(1, tokens[1:, None])[:, 0].cpu() * torch.as_tensor(row.mask[1:])
    atol = 2e-6 if dtype is torch.float32 else 0.15
    torch.testing.assert_close(trainer.logprobs(pack([row]))[1:], expected, rtol=1e-5, atol=atol)


def test_a_checkpoint_holds_a_loadable_model(tmp_path: Path) -> None:
    trainer = make_trainer("llama")
    train(trainer, 0, 1)
    trainer.save(tmp_path)
    expected = weights(trainer)
    assert all(torch.equal(expected[name], p) for name, p in load_plainly(tmp_path / "model").named_parameters())
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == {".json", ".safetensors"}


def test_training_goes_on_after_a_save(tmp_path: Path) -> None:
    saving, plain = make_trainer(), make_trainer()
    train(saving, 0, 1)
    saving.save(tmp_path)
    train(plain, 0, 1)
    assert train(saving, 1, 3) == train(plain, 1, 3)


def test_damaged_checkpoints_are_refused(tmp_path: Path) -> None:
    trainer = make_trainer()
    trainer.save(tmp_path / "good")

    def damaged(name: str) -> Path:
        return shutil.copytree(tmp_path / "good", tmp_path / name)

    path = damaged("truncated")
    content = (path / "trainer.safetensors").read_bytes()
    (path / "trainer.safetensors").write_bytes(content[: len(content) - 100])
    with pytest.raises(CheckpointError, match=r"trainer.safetensors is damaged .*resume from another"):
        trainer.load(path)

    path = damaged("missing")
    (path / "trainer.safetensors").unlink()
    with pytest.raises(CheckpointError, match="is damaged"):
        trainer.load(path)

    for index, text in enumerate(
        ["", "[]", "{}", '{"format": 9}', '{"format": 1, "step_count": -1, "updates": 0}', '{"format": 1, "x": 1}']
    ):
        path = damaged(f"record{index}")
        (path / "trainer.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"trainer.json cannot be read .*resume from another"):
            trainer.load(path)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    make_trainer("llama").save(tmp_path)
    with pytest.raises(CheckpointError, match=r"is of another model: .* are in only one of the two"):
        make_trainer("qwen3").load(tmp_path)


def test_what_a_rank_wrote_tells_which_part_of_what_it_is(tmp_path: Path) -> None:
    """Rows 2 and 3 of [4, 3], and nothing of what another rank has first."""
    state = {
        "master.w": Piece(torch.ones(2, 3), (4, 3), (2, 0)),
        "exp_avg.n": Piece(torch.ones(3), (3,), (0,), is_first=False),
    }
    file = write_part(tmp_path, 1, 2, state, {"rng.cpu": torch.zeros(8, dtype=torch.uint8)})
    assert read_boxes(file) == {"master.w": {"whole": [4, 3], "begins": [2, 0], "shape": [2, 3]}}
    assert read_boxes(write_part(tmp_path, 0, 1, {"master.w": Piece.of_whole(torch.ones(3))}, {})) == {}
