"""A run's folder, as its one owner sees it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from headrace.config.reading.changes import Change, changes, listed
from headrace.config.reading.resume import is_safe_change, why_not
from headrace.store.checkpoints import Checkpoints
from headrace.store.errors import ConfigMismatch, DataMismatch, RunExists, RunMissing, write_failed
from headrace.store.journal import Journal
from headrace.store.journal_writer import SEGMENT_BYTES, JournalWriter
from headrace.store.ledger import Ledger
from headrace.store.media.database import LOGS, Database
from headrace.store.media.files import LOCAL, Files, Lock, write_whole
from headrace.store.media.lock import LOCK_NAME
from headrace.store.origin import ORIGIN_NAME
from headrace.store.partials import PARTIALS_NAME, Partials
from headrace.store.records import Events, Metrics, write_status
from headrace.store.recovery import recover
from headrace.store.segment import AttemptKey
from headrace.store.writers import Writers

DATABASE_NAME = "run.db"
ROLLOUTS_NAME = "rollouts.db"
CONFIG_NAME = "config.yaml"
FOLDERS = ("journal", "checkpoints", "logs")
TRACKERS_NAME = "trackers"
GATEWAY_NAME = "gateway.json"
_MORE_FOLDERS = ("weights", TRACKERS_NAME, ORIGIN_NAME, PARTIALS_NAME)
CONTROL_NAME = "control.sock"
_ERASED_NAME = f"{DATABASE_NAME}.erased"
"""As the database is called from when a run's erasure begins until all else of it is gone."""
_FILES = (DATABASE_NAME, ROLLOUTS_NAME, CONFIG_NAME, "summary.json", LOCK_NAME, CONTROL_NAME)
_MADE_BY_RUNS = (
    *(name + end + log for name in (DATABASE_NAME, ROLLOUTS_NAME) for end in ("", ".new") for log in ("", *LOGS)),
    *FOLDERS,
    CONFIG_NAME,
    "summary.json",
    GATEWAY_NAME,
    "weights",
    TRACKERS_NAME,
    PARTIALS_NAME,
    ORIGIN_NAME,
    f"{ORIGIN_NAME}.new",
    CONTROL_NAME,
    _ERASED_NAME,
    LOCK_NAME,
)


class RunStore:
    """The durable record of a run, held by one process and used from one thread.

    Only `writer`, `journal.read` and `checkpoints.prepare` may be used from other threads.
    """

    def __init__(
        self,
        path: Path,
        lock: Lock,
        database: Database,
        journal: Journal,
        writer: JournalWriter,
        *,
        keep_checkpoints: int,
        keep_journal: bool,
        damaged: Collection[AttemptKey],
        files: Files = LOCAL,
    ) -> None:
        """`damaged`: attempts whose group was in the journal, and cannot be read from it any more."""
        self.path = path
        self.files = files
        self.journal = journal
        self.writer = writer
        """Of the groups that this process finishes."""
        self.writers = Writers(database, journal)
        self.ledger = Ledger(database, journal)
        self.checkpoints = Checkpoints(
            path / "checkpoints",
            database,
            self.ledger,
            journal,
            self.writers,
            keep=keep_checkpoints,
            damaged=damaged,
            keep_journal=keep_journal,
            files=files,
        )
        self.metrics = Metrics(database)
        self.events = Events(database)
        self.partials = Partials(path / PARTIALS_NAME, files)
        self.changed: tuple[Change, ...] = ()
        """What `open` found to differ from the run's config, all of it safe."""
        self._lock = lock
        self._database = database

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        config_yaml: str,
        config_sha256: str,
        now: float,
        keep_checkpoints: int = 2,
        keep_journal: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
        files: Files = LOCAL,
    ) -> RunStore:
        """Begin a run in a folder that is absent or holds none. `now` is in seconds since the epoch.

        Raises RunExists, RunInUse, DiskFull, or StoreError where it cannot be written.
        """
        try:
            files.make_folder(path)
        except (FileExistsError, NotADirectoryError) as error:
            raise RunExists(f"{path} cannot be a run's folder: there is a file; choose another --dir") from error
        except OSError as error:
            raise write_failed(error, path) from error
        _check_kinds(path, files)
        with ExitStack() as undo:
            lock = files.lock(path)
            undo.callback(lock.release)
            _refuse_taken(path, config_yaml, files)
            _make_folders(path, files)
            values = {
                "config_yaml": config_yaml,
                "config_sha256": config_sha256,
                "created_at": repr(now),
                "status": "running",
            }
            try:
                Database.create(path / DATABASE_NAME, values, files=files)
            except OSError as error:
                raise write_failed(error, path / DATABASE_NAME) from error
            # Behind the database, so that one which a kill leaves is known to be a run's, and can be erased.
            write_whole(path / CONFIG_NAME, config_yaml.encode(), files)
            return cls._opened(path, files, lock, undo, (keep_checkpoints, keep_journal), segment_bytes)

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        config_sha256: str,
        config_yaml: str = "",
        keep_checkpoints: int = 2,
        keep_journal: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
        files: Files = LOCAL,
    ) -> RunStore:
        """Take over a run that was begun before. Groups that a crash left journalled but running become ready. Its
        status stays as it was.

        `config_yaml`: the config of now. What of it differs is in `changed`, until `take_config` makes it the run's.

        Raises RunMissing, RunInUse, RunDamaged; ConfigMismatch if more differs than is safe; RunExists where a file is
        in the place of a folder; StoreError where it cannot be written.
        """
        if not cls.exists(path, files):
            raise RunMissing(
                f"{path} holds no run (there is no {DATABASE_NAME}); check the path, or leave out --resume"
            )
        _check_kinds(path, files)
        with ExitStack() as undo:
            lock = files.lock(path)
            undo.callback(lock.release)
            keep = (keep_checkpoints, keep_journal)
            return cls._opened(path, files, lock, undo, keep, segment_bytes, (config_sha256, config_yaml))

    @classmethod
    def _opened(
        cls,
        path: Path,
        files: Files,
        lock: Lock,
        undo: ExitStack,
        keep: tuple[int, bool],
        segment_bytes: int,
        config: tuple[str, str] | None = None,
    ) -> RunStore:
        database = Database(path / DATABASE_NAME, files=files)
        undo.callback(database.close)
        changed: list[Change] = []
        if config is not None:
            database.check_integrity()
            changed = _compare_config(path, database, *config)
        _make_folders(path, files)
        journal = Journal(path / "journal", files)
        damaged = recover(database, journal)
        writer = JournalWriter(path / "journal", segment_bytes=segment_bytes, files=files)
        store = cls(
            path,
            lock,
            database,
            journal,
            writer,
            keep_checkpoints=keep[0],
            keep_journal=keep[1],
            damaged=damaged,
            files=files,
        )
        store.changed = tuple(changed)
        undo.pop_all()
        return store

    @staticmethod
    def exists(path: Path, files: Files = LOCAL) -> bool:
        """Whether the folder holds a run."""
        return files.is_file(path / DATABASE_NAME) or files.is_folder(path / DATABASE_NAME)

    @classmethod
    def is_erasable(cls, path: Path, files: Files = LOCAL) -> bool:
        """Whether the folder holds a run, or what is left of one where its erasure was killed."""
        return cls.exists(path, files) or files.is_file(path / _ERASED_NAME)

    @classmethod
    def erase(cls, path: Path, files: Files = LOCAL) -> None:
        """Remove what a run made, and nothing else. It is a run no more from the first moment on. Raises RunMissing,
        RunInUse."""
        if not cls.is_erasable(path, files) and not files.is_file(path / LOCK_NAME):
            raise RunMissing(f"{path} holds no run, so there is nothing to erase; check the path")
        lock = files.lock(path)
        try:
            if cls.exists(path, files):
                files.rename(path / DATABASE_NAME, path / _ERASED_NAME)
                files.sync(path)
            for name in _MADE_BY_RUNS:
                files.remove(path / name)
        except OSError as error:
            raise write_failed(error, path) from error
        finally:
            lock.release()

    def claim_data(self, sources: Mapping[str, str]) -> None:
        """Note what each source of the data holds, in a few words that differ where its rows do. Raises DataMismatch
        where the run began with others."""
        now = json.dumps(dict(sources))
        self._database.execute("INSERT OR IGNORE INTO run VALUES ('data', ?)", (now,))
        ((then,),) = self._database.rows("SELECT value FROM run WHERE name = 'data'")
        before = json.loads(then)
        changed = [name for name in sources if before.get(name) != sources[name]]
        if changed:
            raise DataMismatch(
                f"{changed[0]} is not what it was when the run in {self.path} began (it held "
                f"{before.get(changed[0])}, now {sources[changed[0]]}): put it back, or choose another --dir, or begin "
                "again with --fresh"
            )

    def transaction(self) -> AbstractContextManager[None]:
        """What ledger, metrics and events write inside commits together or not at all. Never await inside."""
        return self._database.transaction()

    def set_status(self, status: str) -> None:
        """One of running, finished, stopped, failed."""
        write_status(self._database, status)

    def take_config(self, config_yaml: str, config_sha256: str, now: float) -> None:
        """Make the config that the run was opened with the run's own. The one before stays in the event
        `config_changed`. `now` is in seconds since the epoch."""
        if self.changed:
            with self._database.transaction():
                ((before,),) = self._database.rows("SELECT value FROM run WHERE name = 'config_yaml'")
                for name, value in (("config_yaml", config_yaml), ("config_sha256", config_sha256)):
                    self._database.execute("UPDATE run SET value = ? WHERE name = ?", (value, name))
                changed = "; ".join(map(str, self.changed))
                self.events.write(now, "config_changed", {"changed": changed, "before": before})
            self.changed = ()
        # A kill may have come between the record and the file.
        path = self.path / CONFIG_NAME
        if not self.files.is_file(path) or self.files.read(path) != config_yaml.encode():
            write_whole(path, config_yaml.encode(), self.files)

    def close(self) -> None:
        """Sync the journal, and give the run free."""
        with ExitStack() as ends:
            ends.callback(self._lock.release)
            ends.callback(self._database.close)
            ends.callback(self.writer.close)


def _check_kinds(path: Path, files: Files) -> None:
    """Raises RunExists where a file has the name of one of the run's folders, or the other way round."""
    for name in (*FOLDERS, *_MORE_FOLDERS):
        if files.is_file(path / name):
            raise RunExists(f"{path / name} is a file, where a run has a folder: move it away, or choose another --dir")
    for name in _FILES:
        if files.is_folder(path / name):
            raise RunExists(f"{path / name} is a folder, where a run has a file: move it away, or choose another --dir")


def _make_folders(path: Path, files: Files) -> None:
    for name in FOLDERS:
        try:
            files.make_folder(path / name)
        except OSError as error:
            raise write_failed(error, path / name) from error


def _refuse_taken(path: Path, config_yaml: str, files: Files) -> None:
    if RunStore.exists(path, files):
        raise RunExists(
            f"{path} already holds a run: continue it with --resume, erase it and begin again with --fresh, "
            "or choose another --dir"
        )
    if RunStore.is_erasable(path, files):
        raise RunExists(
            f"{path} holds what is left of a run whose erasure was cut off: erase it and begin again with --fresh, "
            "or choose another --dir"
        )
    for name in ("journal", "checkpoints"):
        if files.is_folder(path / name) and files.inside(path / name):
            raise RunExists(f"{path / name} is in the way of a new run: choose another --dir, or move it away")
    config = path / CONFIG_NAME
    if files.is_file(config) and files.read(config) != config_yaml.encode():
        raise RunExists(f"{config} would be overwritten by the run's own: choose another --dir, or move it away")


def _compare_config(path: Path, database: Database, config_sha256: str, config_yaml: str) -> list[Change]:
    """What differs. Raises ConfigMismatch if that is more than is safe, or cannot be told."""
    values = dict(database.rows("SELECT name, value FROM run WHERE name IN ('config_sha256', 'config_yaml')"))
    found = changes(values["config_yaml"], config_yaml)
    refused = [change for change in found or () if not is_safe_change(change.key, change.was, change.now)]
    if not refused and (found is not None or values["config_sha256"] == config_sha256):
        return found or []
    lines = listed(f"{change} ({why_not(change.key)})" for change in refused)
    raise ConfigMismatch(
        f"{path} was made with another config{lines}\ncontinue it with its own, {path / CONFIG_NAME}, of which "
        "docs/run.md says what may change; or begin another from its weights with --dir OTHER --from RUN; or begin "
        "again with --fresh"
    )
