"""A run that begins from another's weights: what it takes, what it records, and that it needs the other no more."""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
import torch
import yaml
from controller_jobs import make_job, make_model
from safetensors.torch import load_file

from headrace.cli.main import main
from headrace.store import RunReader

STILL = "trainer.optimizer.lr=1e-30"
"""A rate at which no weight moves."""


def train(job: Path, folder: Path, *more: str) -> int:
    return main(["train", str(job), "--dir", str(folder), "--plain", *more])


def on_policy(folder: Path, **changes: object) -> Path:
    settings = {"async__mode": "sync", "data__eval": None, "trainer__batches": 2, "checkpoint__every": 1, **changes}
    return make_job(folder, **{"rollout__filters": [], **settings})


def masters(folder: Path) -> dict[str, torch.Tensor]:
    tensors = load_file(folder / "trainer.safetensors")
    return {name: tensor for name, tensor in tensors.items() if name.startswith("master.")}


def are_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], tensor) for name, tensor in other.items())


def updates(folder: Path) -> int:
    return json.loads((folder / "trainer.json").read_text())["updates"]


@pytest.mark.slow
@pytest.mark.copied
def test_the_weights_become_version_0_and_the_source_may_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, first, second = on_policy(tmp_path / "job"), tmp_path / "first", tmp_path / "second"
    assert train(job, first) == 0
    reference = "algorithm.kl.coefficient=0.1"
    assert train(job, second, "--from", str(first), STILL, "trainer.batches=1", reference) == 0
    step_2, own = first / "checkpoints" / "step_2", second / "checkpoints" / "step_1"
    assert are_equal(masters(step_2), masters(own)), "trained from there, at a rate that changes nothing"
    assert (updates(step_2), updates(own)) == (2, 1), "the optimiser began anew"
    assert json.loads((own / "trainer.json").read_text())["step_count"] == 1
    with RunReader(second) as run:
        (event,) = [event.data for event in run.events.read() if event.kind == "began_from"]
        (batch,) = [row.record for row in run.metrics.read("batch")]
    assert event == {"run": f"{first}@2", "optimizer": False, "critic": False}
    assert batch["mismatch_mean_abs"] < 1e-5, "the engine sampled with them"
    assert abs(batch["reference_kl"]) < 1e-6, "the reference is version 0"
    config = yaml.safe_load((second / "config.yaml").read_text())
    assert config["from"] == {"run": f"{first}@2", "optimizer": False}

    assert train(second / "config.yaml", tmp_path / "third", "--from-optimizer", f"from.run={first}@1") == 0
    assert are_equal(masters(first / "checkpoints" / "step_1"), masters(tmp_path / "third" / "checkpoints" / "step_1"))
    assert updates(tmp_path / "third" / "checkpoints" / "step_1") == 1 + 1, "of the other run, and its own"

    shutil.rmtree(first)
    for again in (["--from", str(first)], []):
        batches = f"trainer.batches={2 + (not again)}"
        capsys.readouterr()
        assert train(job, second, STILL, batches, reference, *again, "--resume") == 0, capsys.readouterr().err
    assert train(job, second, STILL, batches, reference, "--from", "elsewhere@3", "--resume") == 2
    assert 'from.run: was "' in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.copied
def test_the_critic_begins_from_the_others_where_both_have_one(tmp_path: Path) -> None:
    ppo = {"recipe": "ppo", "kl": {"coefficient": 0.0}}
    job = on_policy(tmp_path / "job", algorithm=ppo, critic={"optimizer": {"lr": 1e-3}})
    assert train(job, tmp_path / "first") == 0
    still = [STILL, "critic.optimizer.lr=1e-30", "trainer.batches=1"]
    assert train(job, tmp_path / "second", "--from", f"{tmp_path / 'first'}@2", "--from-optimizer", *still) == 0
    parts = [tmp_path / run / "checkpoints" / step for run, step in (("first", "step_2"), ("second", "step_1"))]
    assert are_equal(masters(parts[0]), masters(parts[1]))
    assert are_equal(masters(parts[0] / "critic"), masters(parts[1] / "critic"))
    assert [updates(part / "critic") for part in parts] == [2, 3]


@pytest.mark.slow
@pytest.mark.copied
def test_master_weights_are_taken_where_the_model_is_them_rounded(tmp_path: Path) -> None:
    """A run in bfloat16 begins from the float32 masters of one in bfloat16; one in float32 from what was served."""
    job, first = on_policy(tmp_path / "job", model={"dtype": "bfloat16"}, trainer__batches=1), tmp_path / "first"
    path = f"model.path={tmp_path / 'job' / 'model'}"
    assert train(job, first, path) == 0
    for dtype in ("bfloat16", "float32"):
        assert train(job, tmp_path / dtype, path, f"model.dtype={dtype}", "--from", str(first), STILL) == 0
    step = Path("checkpoints") / "step_1"
    source, half, whole = (masters(tmp_path / run / step) for run in ("first", "bfloat16", "float32"))
    assert are_equal(source, half)
    assert are_equal({name: tensor.bfloat16().float() for name, tensor in source.items()}, whole)
    assert not are_equal(source, whole)


@pytest.mark.slow
@pytest.mark.copied
def test_what_cannot_be_begun_from_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job, first = on_policy(tmp_path / "job"), tmp_path / "first"
    assert train(job, first, "trainer.batches=3") == 0
    other = on_policy(tmp_path / "other")
    make_model(tmp_path / "other" / "model", "llama")

    def refused(given: object, *more: str, job: Path = job) -> str:
        capsys.readouterr()
        assert train(job, tmp_path / "new", "--from", str(given), *more) == 2
        assert not (tmp_path / "new").exists(), "before anything starts"
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert refused(f"{first}@1").endswith(f"{first} kept no checkpoint of that version; it has @2, @3")
    assert refused(tmp_path / "nowhere").endswith(f"there is no folder {tmp_path / 'nowhere'}; correct the path")
    model = tmp_path / "job" / "model"
    assert refused(model).endswith(f"{model} is a model, not a run; set model.path to it")
    assert "holds neither a run nor a checkpoint" in refused(tmp_path)
    assert "a model whose model_type is qwen3, and that of model.path" in refused(first, job=other)
    connection = sqlite3.connect(first / "run.db")
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()
    assert train(job, tmp_path / "new", "--from", str(first), "--dry-run") == 0, "of another format of the record"
    assert f"from      {first}@3: its weights are version 0, the optimiser begins anew" in capsys.readouterr().out
    damaged = first / "checkpoints" / "step_3" / "trainer.safetensors"
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    assert train(job, tmp_path / "new", "--from", str(first)) == 1
    assert f"{damaged} is damaged" in capsys.readouterr().err
    assert train(job, first, "--from", str(first), "--fresh") == 2
    assert "which --fresh would erase" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.copied
def test_between_the_offline_trainers_and_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = on_policy(tmp_path / "job", trainer__batches=1)
    rows = [{"prompt": f"{a}+1=", "response": str(a + 1)} for a in range(4)]
    (tmp_path / "sft.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sft = {
        "model": {"path": str(tmp_path / "job" / "model")},
        "data": {"train": str(tmp_path / "sft.jsonl")},
        "trainer": {"samples_per_batch": 2, "optimizer": {"lr": 1e-3}},
    }
    (tmp_path / "sft.yaml").write_text(yaml.safe_dump(sft))
    assert main(["sft", str(tmp_path / "sft.yaml"), "--dir", str(tmp_path / "sft")]) == 0
    assert train(job, tmp_path / "run", "--from", str(tmp_path / "sft"), STILL) == 0
    exported = load_file(tmp_path / "sft" / "model" / "model.safetensors")
    assert are_equal(exported, load_file(tmp_path / "run" / "checkpoints" / "step_1" / "model" / "model.safetensors"))
    assert train(job, tmp_path / "new", "--from", str(tmp_path / "sft"), "--from-optimizer") == 2
    assert "has weights only" in capsys.readouterr().err

    again = ["sft", str(tmp_path / "sft.yaml"), "--dir", str(tmp_path / "again"), STILL]
    assert main([*again, "--from", str(tmp_path / "run")]) == 0
    assert are_equal(exported, load_file(tmp_path / "again" / "model" / "model.safetensors"))
