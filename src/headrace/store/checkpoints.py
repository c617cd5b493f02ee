"""Checkpoints: files made whole beside the run, then named by one transaction."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headrace.store.best import Best, link_best, read_best, write_best
from headrace.store.errors import RunDamaged, StoreError, write_failed
from headrace.store.journal import Journal
from headrace.store.ledger import AttemptRow, Ledger
from headrace.store.media.database import Database
from headrace.store.media.files import LOCAL, Digest, Files
from headrace.store.recovery import removable_segments
from headrace.store.sealed_files import seal, verify
from headrace.store.segment import AttemptKey
from headrace.store.writers import Writers

_OURS = re.compile(r"step_\d+(\.\d+)?|\.tmp_\d+")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A folder whose files are durable, that no transaction has named yet."""

    number: int
    path: Path
    files: dict[str, dict[str, Any]]
    """`bytes` and `sha256` of each file, by its path in the folder."""


@dataclass(frozen=True, slots=True)
class Restored:
    """Where a run goes on: version `number`, on a new branch."""

    number: int
    branch: int
    path: Path | None
    """Folder of the checkpoint's files; None for version 0, the initial model."""
    state: dict[str, Any]
    """What `commit` was given; empty for version 0."""
    ready: list[AttemptRow]
    running: list[AttemptRow]
    damaged: list[AttemptRow]
    """Those that were ready, or trained after the commit, until their record in the journal was damaged: they are
    running again. Each with the place where the record was."""
    missing: list[Path]
    """Folders of newer checkpoints that are gone, so that the run goes on from an older one."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A checkpoint to go back to. Plain data."""

    number: int
    branch: int
    """Of the version that it is."""
    path: Path | None
    """Folder of its files; None for version 0, the initial model."""
    files: dict[str, dict[str, Any]]
    state: dict[str, Any]
    older: int | None
    """Number of the one before, which is kept too; None if none is."""
    missing: tuple[Path, ...]
    """Folders of newer ones that are gone."""

    def verify(self, files: Files = LOCAL) -> None:
        """That its files are what was committed. Blocking; safe on any thread. Raises RunDamaged, naming the file."""
        if self.path is not None:
            verify(self.path, self.files, self.older, files)


class Checkpoints:
    """Checkpoint N is version N: batches 0 .. N-1 are trained. Version 0 is a checkpoint without files."""

    def __init__(
        self,
        folder: Path,
        database: Database,
        ledger: Ledger,
        journal: Journal,
        writers: Writers,
        *,
        keep: int,
        damaged: Collection[AttemptKey],
        keep_journal: bool = False,
        files: Files = LOCAL,
    ) -> None:
        """`damaged`: attempts whose group can no more be read from the journal. `keep_journal`: no segment of it ever
        goes."""
        self._files = files
        self._keep_journal = keep_journal
        self._damaged = frozenset(damaged)
        self._folder = folder
        self._database = database
        self._ledger = ledger
        self._journal = journal
        self._writers = writers
        self._keep = keep
        self._held: set[int] = set()
        self._prepare_lock = threading.Lock()
        self._committed = self._named()
        """Names of committed folders; replaced, never changed, because `prepare` reads it on other threads."""

    @property
    def best(self) -> Best | None:
        """See `keep_as_best`."""
        return read_best(self._database)

    def has(self, number: int) -> bool:
        """Whether there is a checkpoint of version `number` to go back to."""
        return bool(self._rows("number = ?", "number", number))

    def hold(self, number: int) -> None:
        """That of version `number` stays until it is released, however many newer ones there are. Not durable."""
        self._held.add(number)

    def release(self, number: int) -> None:
        self._held.discard(number)

    def release_after(self, number: int) -> None:
        """As `release`, those of all later versions."""
        self._held = {held for held in self._held if held <= number}

    def keep_as_best(self, number: int, *, metric: str, value: float) -> None:
        """Name the checkpoint of version `number` as the best, durably; `checkpoints/best` leads to it.

        It stays until another is named so, also when it is too old to go back to. That of version 0 has no files.
        Raises StoreError if there is no such checkpoint.
        """
        found = self._rows("number = ?", "branch, folder", number)
        if not found:
            raise StoreError(f"there is no checkpoint of version {number} to keep as the best")
        ((branch, folder),) = found
        with self._database.transaction(durable=True):
            write_best(self._database, Best(number, branch, folder, metric, value))
        link_best(self._folder, folder, self._files)
        self._remove_unnamed()

    def begin(self, number: int) -> Path:
        """A fresh folder for the files of version `number`, which `prepare` makes durable. Raises DiskFull."""
        temporary = self._temporary(number)
        try:
            self._files.remove(temporary)
            self._files.make_folder(temporary)
        except OSError as error:
            raise write_failed(error, temporary) from error
        return temporary

    def _temporary(self, number: int) -> Path:
        return self._folder / f".tmp_{number}"

    @contextmanager
    def filling(self, number: int) -> Iterator[None]:
        """Around what fills the folder of `begin`: where that fails, it is gone again. Raises DiskFull."""
        try:
            yield
        except Exception as error:
            self._files.remove(self._temporary(number))
            failure = write_failed(error, self._folder / f"step_{number}")
            if isinstance(error, OSError) or type(failure) is not StoreError:
                raise failure from error
            raise

    def prepare(
        self,
        number: int,
        write: Callable[[Path], None] | None = None,
        known: Mapping[str, Digest] = MappingProxyType({}),
    ) -> Prepared:
        """Make a folder that `write` fills durable as `step_<number>`; that of `begin`, which is filled, unless given.
        `known`: what whoever wrote files there says of them, by their path in the folder; of the others all bytes are
        read. Safe on any thread.

        Raises DiskFull, and StoreError where nothing was written into it; then the folder is gone again.
        """
        with self._prepare_lock:
            final = self._free_name(number)
            temporary = self._temporary(number) if write is None else self.begin(number)
            with self.filling(number):
                if write is not None:
                    write(temporary)
                files = seal(temporary, number, self._files, known)
                if not files:
                    raise StoreError(f"nothing was written into checkpoint {number}; what was committed before stays")
                self._files.remove(final)
                self._files.rename(temporary, final)
                self._files.sync(self._folder)
            return Prepared(number, final, files)

    def commit_recorded(self, *, branch: int, number: int) -> None:
        """Settle the groups of batches below `number`, durably, in a run without a trainer: nothing else is to be
        restored. Raises LawBroken."""
        with self._database.transaction(durable=True):
            self._ledger.counts().check()
            self._database.execute("DELETE FROM checkpoints")
            self._database.execute("INSERT INTO checkpoints VALUES (?, ?, NULL, '{}', '{}')", (number, branch))

    def commit(self, prepared: Prepared, *, branch: int, number: int, state: dict[str, Any]) -> None:
        """Make a prepared checkpoint the one to restore, durably; groups of batches below `number` are then settled.

        Afterwards removes checkpoints beyond those to keep, and (unless all are kept) journal segments that no kept one
        needs.
        Raises LawBroken if attempts do not add up.
        """
        if prepared.number != number:
            raise StoreError(f"the checkpoint prepared is of version {prepared.number}, the commit of {number}")
        if not self._files.is_folder(prepared.path):
            raise StoreError(f"{prepared.path} is gone: prepare the checkpoint again")
        with self._database.transaction(durable=True):
            self._ledger.counts().check()
            ((newest,),) = self._database.rows("SELECT max(number) FROM checkpoints")
            if number < newest:
                raise StoreError(f"cannot commit version {number}: version {newest} is committed already")
            # A checkpoint of the same version, made before a restore, gives way to this one.
            self._database.execute("DELETE FROM checkpoints WHERE number = ?", (number,))
            self._database.execute(
                "INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?)",
                (number, branch, prepared.path.name, json.dumps(prepared.files), json.dumps(state)),
            )
            held = sorted(self._held)
            self._database.execute(
                "DELETE FROM checkpoints WHERE number NOT IN "
                "(SELECT number FROM checkpoints ORDER BY number DESC LIMIT ?) "
                f"AND number NOT IN ({', '.join('?' * len(held))})",
                (self._keep, *held),
            )
        self._remove_unnamed()
        if not self._keep_journal:
            self._journal.remove(removable_segments(self._database, self._journal, self._writers.at_work))

    def restore(self) -> Restored:
        """Go back to the newest commit, on a new branch. Only the model's state goes back; the ledger does not,
        but for groups trained after the commit, which are ready again; and groups that the journal has lost, which are
        running again.

        Raises RunDamaged, naming the file; LawBroken.
        """
        self._ledger.counts().check()
        best = self.best
        if best is not None and best.folder is not None and not self._files.is_folder(self._folder / best.folder):
            write_best(self._database, None)  # somebody removed it
        self._sweep()
        commit = self.newest()
        commit.verify(self._files)
        with self.fork(commit) as restored:
            return restored

    def newest(self) -> Commit:
        """The newest commit whose files are there. Raises RunDamaged."""
        kept = self._rows("1 ORDER BY number DESC", "number, branch, folder, files, state")
        missing: list[Path] = []
        for number, branch, name, files, state in kept:
            path = None if name is None else self._folder / name
            if path is not None and not self._files.is_folder(path):
                missing.append(path)
                continue
            older = [row[0] for row in kept if row[0] < number]
            return Commit(
                number,
                branch,
                path,
                json.loads(files),
                json.loads(state),
                older[0] if older else None,
                tuple(missing),
            )
        raise RunDamaged(
            f"the checkpoints {', '.join(map(str, missing))} are gone, and no older one is kept: put one back, or "
            "start the run again with --fresh"
        )

    @contextmanager
    def fork(self, commit: Commit) -> Iterator[Restored]:
        """Begin a new branch at `commit`, which is `newest`, in one durable transaction, that what is written within is
        part of. Groups that were trained after the commit are ready again; those that the journal has lost are
        running."""
        number = commit.number
        with self._database.transaction(durable=True):
            self._ledger.counts().check()
            branch, damaged = self._forked(commit)
            yield Restored(
                number=number,
                branch=branch,
                path=commit.path,
                state=commit.state,
                ready=self._ledger.attempts("ready"),
                running=self._ledger.attempts("running"),
                damaged=damaged,
                missing=list(commit.missing),
            )
        self._damaged = frozenset()
        self._committed = self._named()
        link_best(self._folder, None if (best := self.best) is None else best.folder, self._files)

    def lineage(self) -> dict[int, int]:
        """For each branch that the present one descends from, itself included, its last number that was kept."""
        return dict(self._database.rows("SELECT branch, upto FROM lineage"))

    def record_version(self, branch: int, number: int, now: float) -> None:
        """Version (branch, number) is about to be published. `now` is in seconds since the epoch."""
        self._database.execute("INSERT INTO versions VALUES (?, ?, ?)", (branch, number, now))

    def _forked(self, commit: Commit) -> tuple[int, list[AttemptRow]]:
        """The new branch, and the attempts that lost their group."""
        number = commit.number
        self._database.execute("DELETE FROM checkpoints WHERE number > ?", (number,))
        if (best := self.best) is not None and best.number > number:
            write_best(self._database, None)
        self._database.execute(
            "UPDATE attempts SET state = 'ready', batch = NULL WHERE state = 'trained' AND batch >= ?", (number,)
        )
        damaged = [row for row in self._ledger.attempts("ready") if row.key in self._damaged]
        for row in damaged:
            self._ledger.lose(row.key)
        self._database.execute(
            "INSERT INTO branches SELECT max(branch) + 1, ?, ? FROM branches", (commit.branch, number)
        )
        ((branch,),) = self._database.rows("SELECT max(branch) FROM branches")
        return branch, damaged

    def _free_name(self, number: int) -> Path:
        """`step_<number>`, with a suffix if a committed checkpoint of that version stays until it is replaced."""
        name, suffix = f"step_{number}", 0
        while name in self._committed:
            suffix += 1
            name = f"step_{number}.{suffix}"
        return self._folder / name

    def _sweep(self) -> None:
        """Remove folders that a crash left unnamed."""
        for path in self._files.inside(self._folder):
            if _OURS.fullmatch(path.name) and path.name not in self._committed:
                self._files.remove(path)

    def _named(self) -> set[str]:
        """Folders that the record names: of versions to go back to, and of the best."""
        names = {name for (name,) in self._rows("folder IS NOT NULL", "folder")}
        best = self.best
        return names if best is None or best.folder is None else names | {best.folder}

    def _remove_unnamed(self) -> None:
        """Folders that the record named until now."""
        before, self._committed = self._committed, self._named()
        for name in sorted(before - self._committed):
            self._files.remove(self._folder / name)

    def _rows(self, where: str, columns: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self._database.rows(f"SELECT {columns} FROM checkpoints WHERE {where}", parameters)
