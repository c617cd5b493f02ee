"""Offline runs that end before their time: by a signal, by a kill, by a fault; and how they go on."""

import json
import math
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from controller_jobs import make_model, run, start

from headrace.config import SFTConfig
from headrace.observe.offline.run_record import OfflineWatcher
from headrace.offline import loop, replaced_folder
from headrace.offline.loop import STOPPING
from headrace.offline.output import OutputFolder
from headrace.offline.progress import Made, Progress, read_progress, write_progress
from headrace.offline.replaced_folder import ReplacedFolder
from headrace.offline.sft import run_sft
from headrace.store import RunDamaged, RunExists, RunInUse, RunMissing, RunReader, StoreError
from headrace.store.media.lock import RunLock, is_held
from headrace.store.origin import find_origin
from headrace.training.protocol import StepReport
from headrace.training.trainer import HFTrainer

PAIR = {"chosen": "AB", "rejected": "b"}
ROWS = {"sft": {"response": "AB"}, "rm": PAIR, "dpo": PAIR}
STEPS = 12
KILLED = {
    name: f"""
import os, signal, sys, time
from pathlib import Path
from headrace.config import {config}, load_config
from headrace.observe.offline.listeners import OfflineListeners
from headrace.offline.{module} import run_{name}

run_{name}(
    load_config({config}, Path(sys.argv[1])), Path(sys.argv[2]), report=lambda *_: None, now=time.monotonic,
    listeners=OfflineListeners(checkpoint=lambda *_: os.kill(os.getpid(), signal.SIGKILL)),
)
"""
    for name, config, module in (
        ("sft", "SFTConfig", "sft"),
        ("rm", "RMConfig", "pairs"),
        ("dpo", "DPOConfig", "pairs"),
    )
}
"""Ends by SIGKILL once its first checkpoint is there."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("base") / "model")


def settings(folder: Path, model: Path, name: str = "sft", **trainer: object) -> dict[str, Any]:
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{letter}:", **ROWS[name]}) + "\n" for letter in "abcdefgh"))
    size = "samples_per_batch" if name == "sft" else "pairs_per_batch"
    return {
        "model": {"path": str(model), "device": "cpu"},
        "data": {"train": str(data)},
        "trainer": {size: 3, "optimizer": {"lr": 1e-2}, "steps": STEPS, **trainer},
        "checkpoint": {"every": 4},
        "runtime": {"threads": 1},
    }


def weights(folder: Path) -> bytes:
    return (folder / "model" / "model.safetensors").read_bytes()


def write(folder: Path, config: dict[str, Any]) -> Path:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def train(config: dict[str, Any], out: Path, begin: Any = "new") -> Any:
    return run_sft(SFTConfig.model_validate(config), out, begin=begin, report=lambda *_: None, now=lambda: 0.0)


class Fault(Exception):
    pass


def test_a_loss_that_was_not_finite_does_not_keep_a_run_from_going_on(tmp_path: Path) -> None:
    progress = Progress(steps=3, first_loss=1.0, last_loss=math.nan, skipped_steps=1)
    made = Made("config", "seed: 0\n", "data")
    write_progress(tmp_path, progress, made)
    read = read_progress(tmp_path, made)
    assert (read.steps, read.first_loss, read.skipped_steps) == (3, 1.0, 1)
    assert math.isnan(read.last_loss)


def fails_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    step = HFTrainer.step

    def failing(self: HFTrainer) -> StepReport:
        if self.step_count == number:
            raise Fault
        return step(self)

    monkeypatch.setattr(HFTrainer, "step", failing)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sft", *(pytest.param(each, marks=pytest.mark.soak) for each in ("rm", "dpo"))])
def test_a_run_that_was_killed_goes_on_to_the_same_model(tmp_path: Path, model: Path, name: str) -> None:
    config = write(tmp_path, settings(tmp_path, model, name))
    code, out = run(name, config, "--dir", tmp_path / "whole")
    assert code == 0, out

    folder = tmp_path / "killed"
    killed = subprocess.run([sys.executable, "-c", KILLED[name], str(config), str(folder)], check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    code, out = run(name, config, "--dir", folder)
    assert code == 2
    assert "holds a run that is not finished: continue it with --resume, erase it with --fresh" in out
    code, out = run(name, config, "--dir", folder, "--resume")
    assert code == 0, out
    assert weights(folder) == weights(tmp_path / "whole")
    whole, resumed = (json.loads((path / "summary.json").read_text()) for path in (tmp_path / "whole", folder))
    for field in ("wall_s", "tokens_per_s", "model"):
        del whole[field], resumed[field]
    assert resumed == whole
    assert sorted(path.name for path in folder.iterdir()) == ["model", "run.db", "run.lock", "summary.json"]


@pytest.mark.slow
def test_a_signal_stops_after_the_step_with_a_checkpoint(tmp_path: Path, model: Path) -> None:
    config = write(tmp_path, settings(tmp_path, model, steps=100_000))
    folder = tmp_path / "out"
    process = start("sft", config, "--dir", folder)
    end = time.monotonic() + 60
    while not (folder / "checkpoint").exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    try:
        out, _ = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 0, out
    assert "stopped after step" in out
    assert f"sft {config} --dir {folder} --resume" in out
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "stopped"
    progress = json.loads((folder / "checkpoint" / "progress.json").read_text())
    assert progress["steps"] == summary["steps"] > 0
    assert not (folder / "model").exists()


def test_a_fault_costs_the_steps_since_the_last_checkpoint(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(tmp_path, model)
    whole = train(config, tmp_path / "whole")
    with monkeypatch.context() as patch:
        fails_at(patch, 10)
        with pytest.raises(Fault):
            train(config, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "checkpoint" / "progress.json").read_text())["steps"] == 8
    resumed = train(config, tmp_path / "out", "resume")
    assert (resumed.steps, resumed.first_loss, resumed.last_loss) == (STEPS, whole.first_loss, whole.last_loss)
    assert train(config, tmp_path / "out", "resume") == resumed, "a finished run stays as it is"
    other = settings(tmp_path, model, steps=9)
    with pytest.raises(RunMissing, match="holds a run that is finished, of another config or other data"):
        train(other, tmp_path / "out", "resume")


def test_what_cannot_be_resumed_is_refused_by_name(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from headrace.cli.main import main

    config, out = settings(tmp_path, model), tmp_path / "out"
    job = write(tmp_path, config)

    def refused(*arguments: str) -> str:
        assert main(["sft", str(job), *arguments, "--dir", str(out)]) == 2
        return capfd.readouterr().err

    assert f"there is no {out} to resume; begin without --resume" in refused("--resume")
    assert not out.exists()
    out.mkdir()
    assert "holds no checkpoint to resume; begin without --resume" in refused("--resume")
    with monkeypatch.context() as patch:
        fails_at(patch, 10)
        with pytest.raises(Fault):
            train(config, out)
    said = refused("seed=1", "trainer.optimizer.lr=0.5", "checkpoint.every=7", "--resume").splitlines()
    assert said[0].endswith("was made with another config")
    assert said[1:3] == ["  - trainer.optimizer.lr: was 0.01, now 0.5", "  - seed: was 0, now 1"]
    assert said[3].startswith("resume with that one")
    data = Path(config["data"]["train"])
    rows = data.read_text()
    for changed in (rows + json.dumps({"prompt": "x:", "response": "Y"}) + "\n", rows.replace("AB", "BA")):
        data.write_text(changed)
        assert "was made from other data than there is now; resume with the same" in refused("--resume")
    data.write_text(rows)
    (out / "checkpoint" / "progress.json").write_text("{")
    with pytest.raises(RunDamaged, match=r"progress\.json cannot be read .*; begin again with --fresh"):
        train(config, out, "resume")
    assert train(config, out, "fresh").steps == STEPS
    assert not OutputFolder(out).checkpoint.exists()


def test_a_checkpoint_is_resumed_as_it_was_written_or_not_at_all(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out = settings(tmp_path, model), tmp_path / "out"
    with monkeypatch.context() as patch:
        fails_at(patch, 10)
        with pytest.raises(Fault):
            train(config, out)
    monkeypatch.setattr(loop, "started", lambda *_: pytest.fail("the model was loaded"))
    folder = out / "checkpoint"
    told = json.loads((folder / "manifest.json").read_text())
    written = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    assert told["number"] == 8
    assert told["files"].keys() == written.keys() - {"manifest.json"} > {"model/model.safetensors", "progress.json"}
    for name in ("trainer.safetensors", "model/model.safetensors", "trainer.json"):
        kept = written[name].read_bytes()
        written[name].write_bytes(kept[:-9] + bytes([kept[-9] ^ 1]) + kept[-8:])
        with pytest.raises(RunDamaged, match=rf"{name} is damaged \(its sha256 is \w+, not \w+\): .* with --fresh$"):
            train(config, out, "resume")
        written[name].write_bytes(kept)
    written["manifest.json"].unlink()
    with pytest.raises(RunDamaged, match=r"manifest\.json cannot be read .*; begin again with --fresh"):
        train(config, out, "resume")


def test_a_checkpoint_without_a_manifest_is_one_of_an_older_format(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is still begun from."""
    config, out = settings(tmp_path, model), tmp_path / "out"
    with monkeypatch.context() as patch:
        fails_at(patch, 5)
        with pytest.raises(Fault):
            train(config, out)
    (out / "checkpoint" / "manifest.json").unlink(missing_ok=True)
    progress = out / "checkpoint" / "progress.json"
    progress.write_text(json.dumps({**json.loads(progress.read_text()), "format": 2}))
    with pytest.raises(StoreError, match=r"^\S+checkpoint has format 2, .* from format 3: continue .*h$"):
        train(config, out, "resume")
    assert find_origin(str(out)).model == out / "checkpoint" / "model"


def test_whoever_is_told_to_stop_says_what_a_second_signal_does(
    tmp_path: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def report(step: int, loss: float, tokens_per_s: float) -> None:
        if step == 1:
            signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    config = SFTConfig.model_validate(settings(tmp_path, model))
    result = run_sft(config, tmp_path / "run", report=report, now=lambda: 0.0)
    assert (result.status, result.steps) == ("stopped", 1)
    assert (tmp_path / "run" / "checkpoint").is_dir()
    assert caplog.messages == [f"told to stop by SIGTERM: {STOPPING}"]
    assert signal.getsignal(signal.SIGTERM) is before


_HANGS = """
import os, signal, threading
from headrace.controller.stopping import StopFlag

with StopFlag("a second one ends it") as told:
    os.kill(os.getpid(), signal.{number})
    print(told.requested, flush=True)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.{number})).start()
    threading.Event().wait(20.0)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_what_hangs_at_once(number: signal.Signals) -> None:
    """By the signal: nothing that would wait for the work at hand is gone through."""
    line = [sys.executable, "-c", _HANGS.format(number=number.name)]
    found = subprocess.run(line, capture_output=True, text=True, timeout=15)
    assert found.returncode == -number
    assert (found.stdout, found.stderr) == ("True\n", f"told to stop by {number.name}: a second one ends it\n")


@pytest.mark.parametrize("name", ROWS)
def test_a_folder_that_holds_a_finished_run_is_entered_by_no_other(
    tmp_path: Path, model: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from headrace.cli.main import main

    config, out = settings(tmp_path, model, steps=2), tmp_path / "out"
    train(config, out)
    made = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and "-" not in path.name}
    job = str(write(tmp_path, settings(tmp_path, model, name, steps=3)))
    assert main([name, job, "--dir", str(out)]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.endswith(
        "holds a run that is finished: --resume with the same config leaves it as it is, replace it with --fresh, or "
        "give another --dir"
    )
    assert main([name, job, "--dir", str(out), "--resume"]) == 2
    assert "is finished, of another config or other data, and nothing to resume" in capfd.readouterr().err
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and "-" not in path.name} == made
    assert main([name, job, "--dir", str(out), "--fresh", "--plain"]) == 0
    assert json.loads((out / "summary.json").read_text())["steps"] == 3
    assert main([name, job, "--dir", str(out), "--resume", "--plain"]) == 0


def test_a_run_without_a_checkpoint_is_begun_again_with_fresh(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out = settings(tmp_path, model), tmp_path / "out"
    with monkeypatch.context() as patch:
        fails_at(patch, 2)
        with pytest.raises(Fault):
            train(config, out)
    with pytest.raises(RunExists, match=r"made no checkpoint, so --resume has nothing to continue: erase it with --fr"):
        train(config, out)
    with pytest.raises(RunMissing, match="made no checkpoint to resume; give another --dir, or begin again with --fre"):
        train(config, out, "resume")
    assert train(config, out, "fresh").steps == STEPS


@pytest.mark.parametrize("begin", ["new", "resume", "fresh"])
def test_what_another_process_writes_is_touched_by_no_command(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, begin: str
) -> None:
    """Nor is the model loaded for one that may not write."""
    config, out = settings(tmp_path, model, steps=1), tmp_path / "out"
    train(config, out)
    (out / "checkpoint.new").mkdir()
    (out / "checkpoint").mkdir()
    lock = RunLock(out)
    monkeypatch.setattr(loop, "started", lambda *_: pytest.fail("the model was loaded"))
    try:
        with pytest.raises(RunInUse):
            train(settings(tmp_path, model, steps=2), out, begin)
    finally:
        lock.release()
    assert {"checkpoint", "checkpoint.new", "summary.json"} <= {path.name for path in out.iterdir()}


def test_a_run_has_its_folder_from_before_its_model_is_loaded_to_its_end(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, begun, held = tmp_path / "out", loop.started, []

    def started(*given: Any) -> Any:
        held.append(is_held(out))
        return begun(*given)

    monkeypatch.setattr(loop, "started", started)
    monkeypatch.setattr(OutputFolder, "finish", lambda _: held.append(is_held(out)))
    train(settings(tmp_path, model, steps=1), out)
    assert held == [True, True]
    assert not is_held(out)


class Killed(BaseException):
    """Ends the process, as far as the code at hand can tell."""


@pytest.mark.parametrize("at", ["before", "half"])
def test_a_run_that_is_killed_as_its_checkpoint_goes_is_finished(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Before that, and while its files go one by one."""
    config, out = settings(tmp_path, model), tmp_path / "out"

    finish = OutputFolder.finish

    def killed(path: Path) -> None:
        if path.exists():
            (path / "progress.json").unlink()
            raise Killed

    def killed_in_it(output: OutputFolder) -> None:
        if at == "before":
            raise Killed
        monkeypatch.setattr(replaced_folder, "remove", killed)
        finish(output)

    monkeypatch.setattr(OutputFolder, "finish", killed_in_it)
    with pytest.raises(Killed):
        train(config, out)
    monkeypatch.undo()
    left = tmp_path / "left"
    shutil.copytree(out, left)
    with pytest.raises(RunExists, match="holds a run that is finished: --resume with the same config"):
        train(config, left)
    with RunReader(out) as reader:
        assert OfflineWatcher(reader).read().status == "finished"
    assert train(config, out, "resume").steps == STEPS
    assert not [path.name for folder in (out, left) for path in folder.glob("checkpoint*")]


def test_what_was_replaced_does_not_come_back_in_the_place_of_what_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ReplacedFolder(tmp_path / "checkpoint")
    for name in ("checkpoint", "checkpoint.old"):
        (tmp_path / name).mkdir()
    (folder.path / "newest").touch()
    removed, count = replaced_folder.remove, iter(range(9))

    def killed_later(path: Path) -> None:
        if next(count) == 1:
            raise Killed
        removed(path)

    monkeypatch.setattr(replaced_folder, "remove", killed_later)
    with pytest.raises(Killed):
        folder.remove()
    monkeypatch.undo()
    folder.tidy()
    assert [path.name for path in tmp_path.rglob("*")] == ["checkpoint", "newest"], "or none"
