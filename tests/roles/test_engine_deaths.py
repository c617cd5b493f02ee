"""An engine that dies costs the run nothing but time; one that never comes back ends it, with its reason."""

from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.engines.embedded.core import EngineCore
from headrace.store import RunReader


def made_job(folder: Path) -> Path:

    from controller_jobs import make_job

    return make_job(folder)


def dying(monkeypatch: pytest.MonkeyPatch, *, first: int, last: int | None = None) -> None:
    """Engines die at their steps from number `first` to `last`, of all that are made."""
    steps, step = [], EngineCore.step

    def dies(self: EngineCore) -> list:
        steps.append(1)
        if first <= len(steps) and (last is None or len(steps) <= last):
            raise MemoryError("no memory left for the cache")
        return step(self)

    monkeypatch.setattr(EngineCore, "step", dies)


def test_the_only_engine_dies_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dying(monkeypatch, first=5, last=6)
    assert main(["train", str(made_job(tmp_path / "job")), "--dir", str(tmp_path / "run")]) == 0
    with RunReader(tmp_path / "run") as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        kinds = [event.kind for event in reader.events.read()]
        assert "failed_sample" not in kinds
    assert kinds.count("engine_died") == kinds.count("engine_back") == 2


@pytest.mark.slow
def test_an_engine_that_never_comes_back_ends_the_run_and_leaves_it_resumable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job, folder = made_job(tmp_path / "job"), tmp_path / "run"
    dying(monkeypatch, first=6)
    assert main(["train", str(job), "engine.return_deadline_s=1", "--dir", str(folder)]) == 1
    error = capsys.readouterr().err
    assert "the engine died: no memory left for the cache; resume the run to go on" in error
    with RunReader(folder) as reader:
        assert reader.status().name == "failed"
        reader.counts().check()
        reached = reader.version()
    assert reached is not None
    assert (folder / "checkpoints" / f"step_{reached[1]}").is_dir(), "a checkpoint of what was trained"
    monkeypatch.undo()
    assert main(["train", str(job), "--dir", str(folder), "--resume"]) == 0
