"""`headrace.train` on real runs: what is given in Python, what it leaves, and that its config repeats it."""

import asyncio
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from api_jobs import ROWS, job
from api_rewards import letters

import headrace
from headrace.cli.main import main
from headrace.config import load_config
from headrace.runtime.lane_thread import NAME_PREFIX
from headrace.store import RunReader


class Heard:
    def __init__(self) -> None:
        self.batches: list[int] = []
        self.evaluations: list[int] = []
        self.checkpoints: list[headrace.Checkpoint] = []
        self.rollouts: list[dict[str, Any]] = []
        self.threads: set[int] = set()

    def on_batch(self, batch: headrace.BatchRecord) -> None:
        self.batches.append(batch.batch)
        self.threads.add(threading.get_ident())

    def on_evaluation(self, evaluation: headrace.Evaluation) -> None:
        self.evaluations.append(evaluation.number)

    def on_checkpoint(self, checkpoint: headrace.Checkpoint) -> None:
        assert (checkpoint.model / "config.json").is_file()
        self.checkpoints.append(checkpoint)

    def on_rollout(self, rollout: dict[str, Any]) -> None:
        self.rollouts.append(rollout)


class Broken:
    def on_batch(self, batch: headrace.BatchRecord) -> None:
        raise KeyError(batch.batch)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[headrace.Run, Heard]:
    """Within an event loop that runs, as a cell of a notebook is."""
    folder, heard = tmp_path_factory.mktemp("job"), Heard()

    async def cell() -> headrace.Run:
        return headrace.train(
            job(folder, **{"async": {"mode": "sync"}}),
            data=(row for row in ROWS),
            eval_data=ROWS[:3],
            reward=letters,
            dir=folder / "run",
            callbacks=[heard, Broken()],
            trainer__batches=3,
            checkpoint={"every": 2},
            **{"rollout.sampling.max_new_tokens": 7},
        )

    return asyncio.run(cell()), heard


def test_a_run_in_a_running_event_loop_gives_what_it_recorded(trained: tuple[headrace.Run, Heard]) -> None:
    run, _ = trained
    assert (run.status, run.config.rollout.sampling.max_new_tokens, run.config.checkpoint.every) == ("finished", 7, 2)
    assert [batch.batch for batch in run.metrics] == [0, 1, 2]
    assert run.metrics[-1] == run.metrics[1:][-1] == run.record.batches[2]
    assert [evaluation.number for evaluation in run.evaluations] == [0, 3]
    assert run.summary["version"] == 3
    assert run.model == run.path / "checkpoints" / "step_3" / "model"
    assert (run.model / "config.json").is_file()
    samples = run.rollouts(batch=(1, 2), sort="reward", descending=True)
    assert {sample["batch"] for sample in samples} == {1, 2}
    assert samples[0]["reward"] == max(sample["reward"] for sample in samples)
    assert run.rollouts(grep="no such text") == []
    assert repr(run) == f"<headrace run {run.path}: finished, version 3>"
    assert not [thread for thread in threading.enumerate() if thread.name == f"{NAME_PREFIX}run"]


def test_callbacks_hear_all_that_is_recorded_in_the_run_s_event_loop(trained: tuple[headrace.Run, Heard]) -> None:
    run, heard = trained
    assert heard.batches == [0, 1, 2]
    assert heard.evaluations == [0, 3]
    assert [checkpoint.version for checkpoint in heard.checkpoints] == [2, 3]
    assert heard.checkpoints[-1].model == run.model
    assert sorted(map(str, heard.rollouts)) == sorted(map(str, run.rollouts()))
    assert heard.threads.isdisjoint({threading.get_ident()})


def test_a_plot_is_shown_and_written(trained: tuple[headrace.Run, Heard], tmp_path: Path) -> None:
    run, _ = trained
    picture = run.plot(tmp_path / "curves.svg", smooth=2)
    assert picture._repr_svg_() == (tmp_path / "curves.svg").read_text()
    assert run.plot().path is None
    with pytest.raises(headrace.ConfigError, match=r"^path .*: .jpg is no picture"):
        run.plot(tmp_path / "curves.jpg")
    with pytest.raises(headrace.ConfigError, match=r"^smooth is 0"):
        run.plot(smooth=0)
    with pytest.raises(headrace.ConfigError, match=r"^by is 'foo'; use batch, time"):
        run.plot(by="foo")  # type: ignore[arg-type]


def test_rollouts_that_are_asked_for_wrongly_are_one_error(trained: tuple[headrace.Run, Heard]) -> None:
    run, _ = trained
    with pytest.raises(headrace.ConfigError, match=r"^status is 'complete'; use completed, truncated"):
        run.rollouts(status="complete")
    with pytest.raises(headrace.ConfigError, match=r"^limit is -1; give 1 or more"):
        run.rollouts(limit=-1)
    with pytest.raises(headrace.StoreError, match=r"^grep is '\('"):
        run.rollouts(grep="(")


def test_metrics_are_a_frame_where_pandas_is(trained: tuple[headrace.Run, Heard], monkeypatch: Any) -> None:
    run, _ = trained
    monkeypatch.setattr("headrace.api.frame.find_spec", lambda name: None)
    with pytest.raises(headrace.ConfigError, match=r"^frame\(\) needs pandas: pip install pandas"):
        run.metrics.frame()
    monkeypatch.undo()
    pytest.importorskip("pandas")
    frame = run.metrics.frame()
    assert list(frame.index) == [0, 1, 2]
    assert list(frame["reward_mean"]) == [batch.reward_mean for batch in run.metrics]
    assert "totals.generated_tokens" in frame


def test_the_run_s_own_config_repeats_it(trained: tuple[headrace.Run, Heard], tmp_path: Path) -> None:
    """By the command, in another folder."""
    run, _ = trained
    assert main(["train", str(run.path / "config.yaml"), "--dir", str(tmp_path / "again"), "--plain"]) == 0
    again = headrace.Run(tmp_path / "again")
    assert [batch.reward_mean for batch in again.metrics] == [batch.reward_mean for batch in run.metrics]
    with RunReader(run.path) as one, RunReader(again.path) as other:
        assert one.config_sha256 == other.config_sha256


def test_a_finished_run_stays_as_it_is_and_other_data_or_reward_are_another_run(
    trained: tuple[headrace.Run, Heard],
) -> None:
    run, _ = trained
    inputs = sorted(path.name for path in (run.path / "inputs").iterdir())
    assert len(inputs) == 3
    given: dict[str, Any] = {"dir": run.path, "resume": True, "data": ROWS, "eval_data": ROWS[:3]}
    again = headrace.train(run.config, reward=letters, **given)
    assert again.record == run.record
    summary = run.path / "summary.json"
    whole = summary.read_bytes()
    for left in (None, b'{"status": "stopped", "version": 1}'):  # by a kill before it was written
        summary.unlink() if left is None else summary.write_bytes(left)
        headrace.train(run.config, reward=letters, **given)
        assert summary.read_bytes() == whole
    with pytest.raises(headrace.ConfigError, match=r"data is not what the run in .* began with; give the same rows"):
        headrace.train(run.config, reward=letters, **{**given, "data": ROWS[1:]})
    with pytest.raises(headrace.ConfigMismatch, match=r"(?s)reward\.function.*continue it with its own"):
        headrace.train(run.config, reward=lambda response, row: 1.0, **given)
    with pytest.raises(
        headrace.RunExists, match=r"already holds a run: go on with it by resume=True, or give another dir"
    ):
        headrace.train(run.config, dir=run.path)
    assert sorted(path.name for path in (run.path / "inputs").iterdir()) == inputs


def test_an_input_that_was_changed_is_refused(
    trained: tuple[headrace.Run, Heard], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = trained
    (source,) = (run.path / "inputs").glob("train-*.jsonl")
    changed = tmp_path / "inputs" / source.name
    changed.parent.mkdir()
    changed.write_bytes(source.read_bytes() + source.read_bytes())
    assert main(["check", str(run.path / "config.yaml"), f"data.train={changed}"]) == 2
    assert f"headrace: data.train is {changed}, which was changed since it was written" in capsys.readouterr().err


def test_a_callback_that_raises_costs_a_warning_and_how_often(
    trained: tuple[headrace.Run, Heard], caplog: pytest.LogCaptureFixture
) -> None:
    run, _ = trained
    with caplog.at_level(logging.WARNING, "headrace"):
        headrace.train(
            load_config(headrace.TrainConfig, run.path / "config.yaml"),
            dir=run.path.parent / "warned",
            callbacks=[Broken()],
            data__eval=None,
        )
    place = f"test_train.py, line {_line_of_the_raise()}"
    assert [record.getMessage() for record in caplog.records if "callback" in record.getMessage()] == [
        f"callback Broken.on_batch raised KeyError: 0 ({place}); the run goes on",
        "callback Broken.on_batch raised 3 times in all",
    ]


def _line_of_the_raise() -> int:
    return 1 + Path(__file__).read_text().splitlines().index("        raise KeyError(batch.batch)")


class Begun:
    """Lets a loop wait for a run's first batch."""

    def __init__(self) -> None:
        self._loop, self._event = asyncio.get_running_loop(), asyncio.Event()

    def on_batch(self, batch: headrace.BatchRecord) -> None:
        self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        await asyncio.wait_for(self._event.wait(), 60)


@pytest.mark.slow
def test_the_caller_s_loop_goes_on_and_cancelling_stops_the_run_to_be_resumed(tmp_path: Path) -> None:
    ticks, folder = 0, tmp_path / "run"

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    async def until_a_batch(**given: Any) -> None:
        begun, ticking = Begun(), asyncio.create_task(tick())
        run = asyncio.create_task(headrace.atrain(**given, dir=folder, callbacks=[begun]))
        await asyncio.wait({run, waiting := asyncio.create_task(begun.wait())}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        with pytest.raises(headrace.ConfigError, match="this process has a run that goes on"):
            await headrace.atrain(job(tmp_path), data=ROWS, reward=letters, dir=tmp_path / "second")
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        ticking.cancel()

    asyncio.run(until_a_batch(config=job(tmp_path, trainer={"batches": 10_000}), data=ROWS, reward=letters))
    assert ticks > 20
    stopped = headrace.Run(folder)
    assert stopped.status == "stopped"
    trained = len(stopped.metrics)
    assert stopped.model == folder / "checkpoints" / f"step_{trained}" / "model"
    with RunReader(folder) as reader:
        assert [event.data["reason"] for event in reader.events.read() if event.kind == "stopped"] == ["cancellation"]
    asyncio.run(until_a_batch(config=stopped.config, resume=True))
    assert stopped.status == "stopped"
    assert len(stopped.metrics) > trained
    assert not (tmp_path / "second").exists()
