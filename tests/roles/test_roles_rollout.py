"""A dead engine ends the run with its reason, at once, rather than using up the prompts."""

from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.engines.embedded.core import EngineCore
from headrace.store import RunReader


def test_a_dead_engine_ends_the_run_and_leaves_it_resumable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    sys.path.insert(0, str(Path(__file__).parent.parent / "controller"))
    from controller_jobs import make_job

    job = make_job(tmp_path / "job")
    steps, step = [], EngineCore.step

    def dies(self: EngineCore) -> list:
        steps.append(1)
        if len(steps) == 4:
            raise MemoryError("no memory left for the cache")
        return step(self)

    monkeypatch.setattr(EngineCore, "step", dies)
    assert main(["train", str(job), "--dir", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert "the engine died: no memory left for the cache; resume the run to go on" in error
    with RunReader(tmp_path / "run") as reader:
        assert reader.status().name == "failed"
        reader.counts().check()
    monkeypatch.undo()
    assert main(["train", str(job), "--dir", str(tmp_path / "run"), "--resume"]) == 0
