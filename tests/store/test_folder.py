"""Beginning, taking over, guarding and erasing a run's folder."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from store_helpers import CONFIG, checkpoint, create, issue, reopen, train

from headrace.store import (
    ConfigMismatch,
    DataMismatch,
    RunDamaged,
    RunExists,
    RunInUse,
    RunMissing,
    RunReader,
    RunStore,
    StoreError,
)
from headrace.store.media.lock import RunLock
from headrace.store.recorded import read_recorded

HOLD = """
import sys
from pathlib import Path
from store_helpers import reopen
store = reopen(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
store.close()
"""


def hold(path: Path) -> subprocess.Popen[str]:
    """Another process that owns the run until its stdin closes."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        cwd=Path(__file__).parents[1] / "helpers",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_create_makes_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "run"
    assert not RunStore.exists(path)
    create(path).close()
    assert RunStore.exists(path)
    assert sorted(p.name for p in path.iterdir()) == [
        "checkpoints",
        "config.yaml",
        "journal",
        "logs",
        "run.db",
        "run.lock",
    ]
    assert (path / "config.yaml").read_text() == CONFIG


def test_create_beside_other_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    create(tmp_path).close()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_create_refuses_a_folder_with_a_run(tmp_path: Path) -> None:
    create(tmp_path / "run").close()
    with pytest.raises(RunExists, match=r"already holds a run: continue it with --resume.*--fresh"):
        create(tmp_path / "run")


@pytest.mark.parametrize("name", ["config.yaml", "checkpoints/step_1", "journal/000001.journal"])
def test_create_refuses_to_write_over_files_that_no_run_made(tmp_path: Path, name: str) -> None:
    path = tmp_path / "run" / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(RunExists, match="choose another --dir"):
        create(tmp_path / "run")
    assert path.read_text() == "mine"


@pytest.mark.parametrize("name", ["journal", "checkpoints", "logs", "weights"])
def test_a_file_where_a_run_has_a_folder_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunExists, match=rf"{name} is a file, where a run has a folder: move it away"):
        create(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name], "nothing was begun"
    path = tmp_path / "run"
    create(path).close()
    if (path / name).exists():
        (path / name).rmdir()
    (path / name).write_text("mine")
    with pytest.raises(RunExists, match=rf"{name} is a file, where a run has a folder: move it away"):
        reopen(path)


@pytest.mark.parametrize("name", ["config.yaml", "summary.json", "run.lock"])
def test_a_folder_where_a_run_has_a_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(RunExists, match=rf"{name} is a folder, where a run has a file: move it away"):
        create(tmp_path)


def test_a_run_on_a_disk_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tmp_path).close()
    opened = os.open

    def read_only(path: object, flags: int, *rest: int) -> int:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(StoreError, match=r"cannot write .*run\.lock: Read-only file system; check the disk"):
        reopen(tmp_path)
    with pytest.raises(StoreError, match=r"cannot write .*run\.lock: Read-only file system; check the disk"):
        RunStore.erase(tmp_path)


def test_create_after_a_kill_in_the_middle_of_creating(tmp_path: Path) -> None:
    for name in ("journal", "checkpoints", "logs"):
        (tmp_path / name).mkdir()
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "run.db.new").write_bytes(b"half of it")
    (tmp_path / "run.lock").write_text("1\n")
    store = create(tmp_path)
    issue(store, 0)
    store.close()


def test_a_write_ahead_log_that_an_erased_run_left_is_not_taken_over(tmp_path: Path) -> None:
    """The run was killed, and so was its erasure, behind `run.db` and before the log."""
    store = create(tmp_path)
    issue(store, 0)
    logs = {path: path.read_bytes() for path in (tmp_path / "run.db-wal", tmp_path / "run.db-shm")}
    store.close()
    RunStore.erase(tmp_path)
    for path, left in logs.items():
        path.write_bytes(left)
    store = create(tmp_path)
    assert store.ledger.counts().issued == 0
    assert store.ledger.frontier() is None
    store.close()


def test_open_of_a_folder_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(RunMissing, match=r"holds no run.*leave out --resume"):
        reopen(tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def test_open_with_another_config(tmp_path: Path) -> None:
    create(tmp_path / "run").close()
    with pytest.raises(
        ConfigMismatch,
        match=r"another config\n  - seed: was 0, now 1 \(the order of .*\)\ncontinue it with .*config\.yaml",
    ):
        RunStore.open(tmp_path / "run", config_sha256="beef", config_yaml="seed: 1\n")
    with pytest.raises(ConfigMismatch, match=r"another config\ncontinue"):
        RunStore.open(tmp_path / "run", config_sha256="beef")
    reopen(tmp_path / "run").close()


def test_another_process_is_kept_out(tmp_path: Path) -> None:
    path = tmp_path / "run"
    create(path).close()
    child = hold(path)
    for act in (lambda: reopen(path), lambda: create(path), lambda: RunStore.erase(path)):
        with pytest.raises(RunInUse, match=rf"run is in use by process {child.pid}: "):
            act()
    with RunReader(path) as reader:
        assert (reader.status().alive, reader.status().pid) == (True, child.pid)
    child.kill()
    child.wait()
    with RunReader(path) as reader:
        assert (reader.status().name, reader.status().alive) == ("running", False)
    reopen(path).close()


def test_one_process_may_not_open_a_run_twice(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    with pytest.raises(RunInUse, match=f"in use by process {os.getpid()}"):
        reopen(tmp_path / "run")
    issue(store, 0)
    store.close()


_OWNER_WITH_A_FORK = """
import os, sys, time
from pathlib import Path
from headrace.store.media.lock import RunLock
held = RunLock(Path(sys.argv[1]))
fork = os.fork()
if fork == 0:
    time.sleep(60)
    os._exit(0)
print(fork, flush=True)
time.sleep(60)
"""


def test_a_run_is_nobodys_once_its_process_is_gone_though_a_fork_of_it_lives(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER_WITH_A_FORK, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    fork = int(owner.stdout.readline())
    try:
        with pytest.raises(RunInUse, match=f"in use by process {owner.pid}"):
            RunLock(tmp_path)
        owner.kill()
        owner.wait()
        os.kill(fork, 0)  # it lives
        RunLock(tmp_path).release()
    finally:
        owner.kill()
        owner.wait()
        os.kill(fork, signal.SIGKILL)


def test_a_reader_that_looks_for_an_owner_does_not_keep_the_owner_out(tmp_path: Path) -> None:
    create(tmp_path / "run").close()
    descriptor = os.open(tmp_path / "run" / "run.lock", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    timer = threading.Timer(0.05, os.close, [descriptor])
    timer.start()
    reopen(tmp_path / "run").close()
    timer.join()


def test_a_lock_on_an_erased_file_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process erases the run between our opening of the lock file and our locking it."""
    create(tmp_path / "run").close()
    flock, calls = fcntl.flock, []

    def erase_first(descriptor: int, operation: int) -> None:
        calls.append(descriptor)
        if len(calls) == 1:
            (tmp_path / "run" / "run.lock").unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", erase_first)
    store = reopen(tmp_path / "run")
    with pytest.raises(RunInUse):
        reopen(tmp_path / "run")
    store.close()


def test_an_open_that_fails_gives_the_lock_back(tmp_path: Path) -> None:
    create(tmp_path / "run").close()
    with pytest.raises(ConfigMismatch):
        RunStore.open(tmp_path / "run", config_sha256="other")
    reopen(tmp_path / "run").close()


def _overwrite(path: Path) -> None:
    path.write_bytes(b"\0garbage" * 4000)


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _scramble_pages(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(random.Random(0).randbytes(path.stat().st_size - 4096))


@pytest.mark.parametrize("harm", [_overwrite, _truncate, _empty, _scramble_pages])
def test_a_damaged_database_is_told(tmp_path: Path, harm) -> None:
    store = create(tmp_path / "run")
    for batch in range(20):
        train(store, batch, batch=batch)
    store.close()
    harm(tmp_path / "run" / "run.db")
    with pytest.raises(RunDamaged, match=r"run\.db is damaged \(.*put back a copy of it, or .*--fresh"):
        reopen(tmp_path / "run")


def test_another_format_is_told(tmp_path: Path) -> None:
    create(tmp_path / "run").close()
    with sqlite3.connect(tmp_path / "run" / "run.db") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(StoreError, match="has format 99, this headrace reads format 4"):
        reopen(tmp_path / "run")


@pytest.mark.parametrize(
    ("version", "lacks"),
    [(2, ("row", "pass_rate", "scored_in", "issue", "writer")), (3, ("issue", "writer"))],
)
def test_a_run_of_a_format_before_can_be_looked_at_but_not_gone_on_with(
    tmp_path: Path, version: int, lacks: tuple[str, ...]
) -> None:
    """Format 2 has no rows and pass rates in its ledger, format 3 no issue numbers."""
    path = tmp_path / "run"
    store = create(path)
    train(store, 0, batch=0)
    issue(store, 1)
    store.close()
    with closing(sqlite3.connect(path / "run.db", isolation_level=None)) as database:
        if version == 2:
            database.execute("DROP INDEX pass_rates")
        for column in lacks:
            database.execute(f"ALTER TABLE attempts DROP COLUMN {column}")
        database.execute(f"PRAGMA user_version = {version}")
    with RunReader(path) as reader:
        assert (reader.counts().trained, reader.counts().running) == (1, 1)
        assert list(reader.journalled()) == []
    refused = rf"has format {version}, this headrace reads format 4: "
    for opens, mend in ((reopen, "continue the run with"), (read_recorded, "train on its rollouts with")):
        with pytest.raises(StoreError, match=refused + mend) as caught:
            opens(path)
        assert "\n" not in str(caught.value)


def test_the_data_that_a_run_began_with_are_held(tmp_path: Path) -> None:
    store = create(tmp_path / "run")
    store.claim_data({"a.jsonl": "3 rows, aa", "b.csv": "5 rows, bb"})
    store.close()
    store = reopen(tmp_path / "run")
    store.claim_data({"a.jsonl": "3 rows, aa", "b.csv": "5 rows, bb"})
    with pytest.raises(DataMismatch, match=r"b.csv is not what .* \(it held 5 rows, bb, now 4 rows, cc\): put it back"):
        store.claim_data({"a.jsonl": "3 rows, aa", "b.csv": "4 rows, cc"})
    store.close()


def test_erase_removes_what_a_run_made_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "run"
    store = create(path)
    train(store, 0, batch=0)
    checkpoint(store, 1)
    store.close()
    (path / "summary.json").write_text("{}")
    (path / "weights").mkdir()
    (path / "weights" / "v1").write_text("w")
    (path / "data.jsonl").write_text("mine")
    RunStore.erase(path)
    assert [p.name for p in path.iterdir()] == ["data.jsonl"]
    create(path).close()


def test_erase_of_a_damaged_run(tmp_path: Path) -> None:
    create(tmp_path / "run").close()
    _overwrite(tmp_path / "run" / "run.db")
    RunStore.erase(tmp_path / "run")
    create(tmp_path / "run").close()


def test_erase_refuses_a_folder_that_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.yaml").write_text("mine")
    with pytest.raises(RunMissing, match="nothing to erase"):
        RunStore.erase(tmp_path)
    assert (tmp_path / "config.yaml").read_text() == "mine"
    assert (tmp_path / "checkpoints").is_dir()


def test_erase_follows_no_links(tmp_path: Path) -> None:
    create(tmp_path / "run").close()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("mine")
    (tmp_path / "run" / "weights").symlink_to(elsewhere)
    RunStore.erase(tmp_path / "run")
    assert (elsewhere / "precious").read_text() == "mine"
