"""A run's folder: what a kill in the midst of beginning or of erasing leaves, and what a refused command changes."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from simulated_jobs import job

from headrace.config import config_sha256
from headrace.controller.begin import Begin
from headrace.controller.planning.plan import Plan
from headrace.controller.run_folder import open_store
from headrace.controller.simulation.plan import simulated_plan
from headrace.store import DataMismatch, RunExists, RunMissing, RunReader, RunStore
from headrace.store.media.memory_files import MemoryFiles, PowerCut

FOLDER = Path("/run")
MINE = FOLDER / "notes.txt"


class Killed:
    """A watch that ends the process before its operation of this number, from when it is told to count."""

    def __init__(self, at: int) -> None:
        self._left = at
        self.counts = False

    def __call__(self, operation: str, path: Path, what: object) -> None:
        if self.counts:
            self._left -= 1
            if self._left < 0:
                self.counts = False
                raise PowerCut


class OtherPrompts:
    """Of data that were changed since the run began."""

    def contents(self) -> dict[str, str]:
        return {"rows.jsonl": "other rows"}


class UnreadablePrompts:
    """Of data that went between the plan and the run's beginning."""

    def contents(self) -> dict[str, str]:
        raise OSError("rows.jsonl cannot be read")


def plan_of(**changes: object) -> Plan:
    return simulated_plan(job(**changes), prompts=10, slots=4, max_context=1 << 20, vocab_size=64)


def begin(plan: Plan, how: Begin, files: MemoryFiles) -> RunStore:
    store, _ = open_store(plan, FOLDER, how, 1000.0, files=files)
    return store


def issue(store: RunStore) -> None:
    store.ledger.issue((0, 0, 0), prompt_id="p", start_version=0, deadline=2)
    store.writer.append((0, 0, 0), b"a group", issue=0)
    store.writer.sync()


def killed_at(number: int, how: Begin, plan: Plan, *, holds_run: bool) -> MemoryFiles | None:
    """The files after a kill before this operation of the beginning; None where it has no more."""
    watch = Killed(number)
    files = MemoryFiles(watch)
    files.make_folder(FOLDER)
    files.write(MINE, b"mine")
    if holds_run:
        store = begin(plan, "new", files)
        issue(store)
        store.close()
    watch.counts = True
    try:
        begin(plan, how, files).close()
    except PowerCut:
        return files.after_power_cut(lambda steps: steps - 1)  # a kill loses nothing that was written
    return None


@pytest.mark.parametrize(("how", "holds_run"), [("new", False), ("fresh", True)])
def test_after_a_kill_anywhere_in_a_beginning_fresh_begins_anew_with_any_config(how: Begin, holds_run: bool) -> None:
    plan, other = plan_of(), plan_of(trainer__batches=9)
    ways = set[str]()
    for number in count():
        files = killed_at(number, how, plan, holds_run=holds_run)
        if files is None:
            break
        try:
            begin(plan, "resume", files).close()
            ways.add("resume")
        except RunMissing:
            ways.add("missing")
        store = begin(other, "fresh", files)
        assert store.ledger.counts().issued == 0
        assert list(store.journal.written(0)) == []
        store.close()
        assert files.read(MINE) == b"mine"
        with RunReader(FOLDER, files) as reader:
            assert files.read(FOLDER / "config.yaml").decode() == reader.config_yaml
        assert not files.is_file(FOLDER / "run.db.erased")
    assert number > 5
    assert ways == {"resume", "missing"}


def test_a_run_half_erased_is_told_of_and_is_not_gone_on_with() -> None:
    plan = plan_of()
    files = killed_at(4, "fresh", plan, holds_run=True)
    assert files is not None
    with pytest.raises(RunMissing, match=r"/run holds no run"):
        begin(plan, "resume", files)
    with pytest.raises(RunExists, match=r"what is left of a run whose erasure was cut off: .*with --fresh"):
        begin(plan, "new", files)


def test_fresh_erases_nothing_that_no_run_made_where_a_refused_beginning_left_its_lock() -> None:
    files = MemoryFiles()
    files.make_folder(FOLDER)
    for name in ("config.yaml", "run.lock"):
        files.write(FOLDER / name, b"mine")
    with pytest.raises(RunExists, match=r"config\.yaml would be overwritten"):
        begin(plan_of(), "fresh", files)
    assert files.read(FOLDER / "config.yaml") == b"mine"


def test_a_resume_that_is_refused_leaves_the_status_as_it_was() -> None:
    files = MemoryFiles()
    files.make_folder(FOLDER)
    plan, longer = plan_of(), plan_of(trainer__batches=9)
    store = begin(plan, "new", files)
    store.set_status("finished")
    store.close()
    with pytest.raises(DataMismatch, match="is not what it was when the run in /run began"):
        begin(replace(longer, prompts=OtherPrompts()), "resume", files)  # type: ignore[arg-type]
    with RunReader(FOLDER, files) as reader:
        assert (reader.status().name, reader.config_sha256) == ("finished", config_sha256(plan.config))
    begin(longer, "resume", files).close()
    with RunReader(FOLDER, files) as reader:
        assert (reader.status().name, reader.config_sha256) == ("running", config_sha256(longer.config))


def test_a_new_run_whose_data_cannot_be_read_leaves_the_folder_to_the_next() -> None:
    files = MemoryFiles()
    files.make_folder(FOLDER)
    plan = plan_of()
    with pytest.raises(OSError, match="cannot be read"):
        begin(replace(plan, prompts=UnreadablePrompts()), "new", files)  # type: ignore[arg-type]
    begin(plan, "resume", files).close()
