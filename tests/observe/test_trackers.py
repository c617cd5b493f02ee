"""A tracker is given each entry of a run's record once, across restarts, restores and its own failures."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import observe_samples as samples
import pytest

from headrace.config import dump_config
from headrace.observe.run_record import RunWatcher
from headrace.observe.summary import build_summary
from headrace.observe.trackers import follow
from headrace.observe.trackers.csv import CsvFiles
from headrace.observe.trackers.dotted import flat
from headrace.observe.trackers.follow import Follower
from headrace.observe.trackers.names import batch_values
from headrace.observe.trackers.position import Position
from headrace.observe.trackers.process import in_words, tracked_run
from headrace.observe.trackers.protocol import Cell, TrackedRun
from headrace.store import RunReader, RunStore


class Noted:
    """A tracker that writes down what it is told."""

    def __init__(self, id: str = "noted") -> None:
        self.id = id
        self.said: list[tuple[Any, ...]] = []
        self.fails = False

    def rewind(self, step: int) -> None:
        self.said.append(("rewind", step))

    def batch(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self.said.append(("batch", step, values["reward/mean"]))

    def evaluation(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self.said.append(("evaluation", step, values["eval/score"]))

    def samples(self, step: int, at: float, rows: Sequence[Mapping[str, Cell]]) -> None:
        raise AssertionError("nothing tells of samples")

    def flush(self) -> None:
        if self.fails:
            raise ConnectionError("the server is gone")

    def close(self, status: str, summary: Mapping[str, Any]) -> None:
        self.said.append(("close", status, summary["version"]))

    @property
    def steps(self) -> list[int]:
        return [said[1] for said in self.said if said[0] == "batch"]


class Record:
    """A run's store, written as the recorder does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = RunStore.create(path, config_yaml=dump_config(samples.config()), config_sha256="c0ffee", now=1e3)

    def batch(self, number: int, branch: int = 0, **changes: Any) -> None:
        self.store.checkpoints.record_version(branch, number, 0.0)
        record = samples.batch(number - 1, branch=branch, **{"reward_mean": number / 8, **changes})
        self.store.metrics.write(branch, number, 1000.0 + number, record.to_json())

    def evaluation(self, number: int, score: float, branch: int = 0) -> None:
        result = {"number": number, "reward_mean": score, "response_tokens_mean": 4.0, "prompts": 8}
        self.store.metrics.write(branch, number, 2000.0 + number, result, kind="eval")

    def commit(self, number: int, branch: int = 0) -> None:
        prepared = self.store.checkpoints.prepare(number, lambda folder: (folder / "w").write_bytes(b"w"))
        self.store.checkpoints.commit(prepared, branch=branch, number=number, state={})

    def reopen(self) -> int:
        """As `--resume` does; the new branch."""
        self.store.close()
        self.store = RunStore.open(self.path, config_sha256="c0ffee")
        return self.store.checkpoints.restore().branch


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    record = Record(tmp_path / "run")
    yield record
    record.store.close()


@pytest.fixture
def reader(record: Record) -> Iterator[RunReader]:
    with RunReader(record.path) as reader:
        yield reader


def at(record: Record) -> Path:
    return record.path / "position.json"


def follower(reader: RunReader, tracker: Any, path: Path) -> Follower:
    return Follower(reader, tracker, Position.read(path), path)


def test_each_entry_once_in_the_order_written(record: Record, reader: RunReader) -> None:
    tracker = Noted()
    following = follower(reader, tracker, at(record))
    following.catch_up()
    assert tracker.said == []
    record.evaluation(0, 0.5)
    record.batch(1)
    following.catch_up()
    following.catch_up()
    record.batch(2)
    record.evaluation(1, 0.75)
    record.batch(3)
    following.close()
    assert tracker.said == [
        ("evaluation", 0, 0.5),
        ("batch", 1, 0.125),
        ("batch", 2, 0.25),
        ("evaluation", 1, 0.75),
        ("batch", 3, 0.375),
        ("close", "running", 3),
    ]


def test_a_long_record_is_read_in_parts(record: Record, reader: RunReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_PAGE", 3)
    for number in range(1, 9):
        record.batch(number)
    tracker = Noted()
    follower(reader, tracker, at(record)).catch_up()
    assert tracker.steps == list(range(1, 9))


def test_a_second_process_goes_on_where_the_first_one_was(record: Record, reader: RunReader) -> None:
    record.batch(1)
    follower(reader, Noted("its-id"), at(record)).catch_up()
    record.batch(2)
    assert Position.read(at(record)).tracker_id == "its-id"
    tracker = Noted("its-id")
    follower(reader, tracker, at(record)).catch_up()
    assert tracker.said == [("rewind", 1), ("batch", 2, 0.25)]


def test_what_was_not_noted_is_taken_back_and_logged_again(record: Record, reader: RunReader) -> None:
    record.batch(1)
    tracker = Noted()
    following = follower(reader, tracker, at(record))
    following.catch_up()
    record.batch(2)
    tracker.fails = True
    with pytest.raises(ConnectionError):
        following.catch_up()
    tracker = Noted()
    follower(reader, tracker, at(record)).catch_up()
    assert tracker.said == [("rewind", 1), ("batch", 2, 0.25)]


@pytest.mark.parametrize("same_process", [False, True])
def test_what_a_restore_took_back_is_logged_anew(record: Record, reader: RunReader, same_process: bool) -> None:
    """Branch 0 reaches version 4 and commits 2; branch 1 makes 3 again."""
    for number in (1, 2, 3, 4):
        record.batch(number)
    record.commit(2)
    tracker = Noted()
    following = follower(reader, tracker, at(record))
    following.catch_up()
    assert tracker.steps == [1, 2, 3, 4]
    assert record.reopen() == 1
    record.batch(3, branch=1, reward_mean=0.9)
    if not same_process:
        tracker = Noted()
        following = follower(reader, tracker, at(record))
    tracker.said.clear()
    following.catch_up()
    assert tracker.said == [("rewind", 2), ("batch", 3, 0.9)]


def test_what_was_never_logged_of_a_branch_that_was_left_never_is(record: Record, reader: RunReader) -> None:
    tracker = Noted()
    following = follower(reader, tracker, at(record))
    record.batch(1)
    record.commit(1)
    following.catch_up()
    record.batch(2)
    record.reopen()
    record.batch(2, branch=1, reward_mean=0.9)
    following.catch_up()
    assert tracker.said == [("batch", 1, 0.125), ("batch", 2, 0.9)]


def test_a_damaged_position_is_named(record: Record) -> None:
    at(record).write_text("{")
    with pytest.raises(ValueError, match=r"position\.json is damaged: remove it"):
        Position.read(at(record))


# CSV


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def files(reader: RunReader, record: Record) -> tuple[Follower, Path]:
    folder = record.path / "trackers" / "csv"
    folder.mkdir(parents=True, exist_ok=True)
    run = tracked_run(reader, folder, Position.read(at(record)).tracker_id)
    return follower(reader, CsvFiles(run, folder), at(record)), folder


def test_csv_files_have_what_the_record_has(record: Record, reader: RunReader) -> None:
    following, folder = files(reader, record)
    record.evaluation(0, 0.5)
    record.batch(1)
    record.batch(2, entropy=1.25, reward_terms={"length": 0.1})
    following.catch_up()
    record.batch(3, loss=float("nan"))
    following.close()
    run = RunWatcher(reader).read()
    got = rows(folder / "batches.csv")
    assert [row["step"] for row in got] == ["1", "2", "3"]
    assert [row["at"] for row in got] == ["1001.0", "1002.0", "1003.0"]
    for row, batch in zip(got, run.batches, strict=True):
        told = {name: value for name, value in row.items() if name not in ("step", "at") and value}
        assert told == {name: repr(value) for name, value in batch_values(batch).items()}
    assert rows(folder / "evaluations.csv") == [
        {"step": "0", "at": "2000.0", "eval/score": "0.5", "eval/response_tokens_mean": "4.0", "eval/prompts": "8.0",
         "eval/failed": "0.0"}
    ]  # fmt: skip
    parameters = {row["name"]: row["value"] for row in rows(folder / "parameters.csv")}
    assert (parameters["model.path"], parameters["seed"]) == ("m", "7")
    summary = {row["name"]: row["value"] for row in rows(folder / "summary.csv")}
    known = {name: value for name, value in flat(build_summary(run)).items() if value is not None}
    assert {name: value for name, value in summary.items() if value} == {n: str(v) for n, v in known.items() if v != ""}


def test_csv_files_lose_what_a_restore_took_back(record: Record, reader: RunReader) -> None:
    following, folder = files(reader, record)
    record.evaluation(0, 0.5)
    for number in (1, 2, 3):
        record.batch(number)
    record.evaluation(3, 0.6)
    record.commit(1)
    following.catch_up()
    record.reopen()
    record.batch(2, branch=1, reward_mean=0.9)
    following, folder = files(reader, record)
    following.catch_up()
    assert [(row["step"], row["reward/mean"]) for row in rows(folder / "batches.csv")] == [("1", "0.125"), ("2", "0.9")]
    assert [row["step"] for row in rows(folder / "evaluations.csv")] == ["0"]


def test_a_row_that_was_torn_or_not_noted_is_there_once(record: Record, reader: RunReader) -> None:
    following, folder = files(reader, record)
    record.batch(1)
    following.catch_up()
    noted = at(record).read_bytes()
    record.batch(2)
    record.evaluation(1, 0.5)
    following.catch_up()
    at(record).write_bytes(noted)
    with (folder / "batches.csv").open("a") as file:
        file.write("3,1003.0,0.0,4")
    files(reader, record)[0].catch_up()
    assert [row["step"] for row in rows(folder / "batches.csv")] == ["1", "2"]
    assert [row["step"] for row in rows(folder / "evaluations.csv")] == ["1"]


def test_a_folder_with_another_runs_files_is_refused(record: Record, reader: RunReader, tmp_path: Path) -> None:
    (tmp_path / "batches.csv").write_text("step,at\n")
    run = TrackedRun(name="run", key="ab", folder=tmp_path, parameters={}, id=None)
    with pytest.raises(FileExistsError, match="another run's: give this one a folder of its own"):
        CsvFiles(run, tmp_path)


def test_a_table_of_samples(tmp_path: Path) -> None:
    run = TrackedRun(name="run", key="ab", folder=tmp_path, parameters={}, id=None)
    table = [{"prompt": "2+3=", "response": '5,"\n', "reward": 1.0}, {"prompt": "a", "response": "b", "reward": None}]
    CsvFiles(run, tmp_path).samples(4, 0.0, table)
    assert rows(tmp_path / "samples-4.csv") == [
        {"prompt": "2+3=", "response": '5,"\n', "reward": "1.0"},
        {"prompt": "a", "response": "b", "reward": ""},
    ]


def test_what_a_spreadsheet_would_compute_is_text_to_it(tmp_path: Path) -> None:
    run = TrackedRun(name="run", key="ab", folder=tmp_path, parameters={}, id=None)
    table = [{"prompt": "=cmd|' /C calc'!A0", "response": "-2+3", "advantage": -0.5}]
    CsvFiles(run, tmp_path).samples(4, 0.0, table)
    assert rows(tmp_path / "samples-4.csv") == [
        {"prompt": "'=cmd|' /C calc'!A0", "response": "'-2+3", "advantage": "-0.5"}
    ]


def test_samples_that_a_restore_took_back_are_removed(tmp_path: Path) -> None:
    tracker = CsvFiles(TrackedRun(name="run", key="ab", folder=tmp_path, parameters={}, id=None), tmp_path)
    for step in (4, 5, 11):
        tracker.samples(step, 0.0, [{"prompt": "a"}])
    (tmp_path / "samples-of-mine.csv").write_text("")
    tracker.rewind(5)
    assert sorted(path.name for path in tmp_path.glob("samples-*")) == [
        "samples-4.csv",
        "samples-5.csv",
        "samples-of-mine.csv",
    ]


def test_words_of_an_error_are_one_line_without_passwords() -> None:
    error = OSError("no route to http://me:secret@host:5000/api\n\x1b[31mred")
    assert in_words(error) == "OSError: no route to http://***@host:5000/api [31mred"
    assert len(in_words(OSError("x" * 9999))) < 500


def test_sections_become_dotted_keys() -> None:
    values = {"a": {"b": 1, "c": {"d": None}}, "e": [1, {"f": 2}], "g": "h"}
    assert flat(values) == {"a.b": 1, "a.c.d": None, "e": json.dumps([1, {"f": 2}]), "g": "h"}
