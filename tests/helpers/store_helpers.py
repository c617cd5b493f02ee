"""A small run for the store's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.store import JournalOffset, Prepared, RunStore
from headrace.store import journal as reading
from headrace.store.segment import scan

CONFIG = "seed: 0\n"
SHA = "c0ffee"


def create(path: Path, *, keep: int = 2, segment_bytes: int = 1 << 20, keep_journal: bool = False) -> RunStore:
    return RunStore.create(
        path,
        config_yaml=CONFIG,
        config_sha256=SHA,
        now=1000.0,
        keep_checkpoints=keep,
        keep_journal=keep_journal,
        segment_bytes=segment_bytes,
    )


def reopen(path: Path, *, keep: int = 2, segment_bytes: int = 1 << 20, keep_journal: bool = False) -> RunStore:
    return RunStore.open(
        path, config_sha256=SHA, keep_checkpoints=keep, keep_journal=keep_journal, segment_bytes=segment_bytes
    )


def issue(store: RunStore, position: int, attempt: int = 0) -> tuple[int, int, int]:
    key = (0, position, attempt)
    store.ledger.issue(key, prompt_id=f"p{position}", start_version=0, deadline=2)
    return key


def payload(key: tuple[int, int, int], size: int = 100) -> bytes:
    return repr(key).encode().ljust(size, b".")


def finish(store: RunStore, key: tuple[int, int, int], size: int = 100) -> JournalOffset:
    """Journal a running attempt's group, and make it ready."""
    place = journal(store, key, payload(key, size))
    store.writer.sync()
    store.ledger.ready(store.writer.receipt(key, place, issue=issue_of(store, key)))
    return place


def journal(store: RunStore, key: tuple[int, int, int], data: bytes) -> JournalOffset:
    """Write the group of a running attempt, as it was last issued."""
    return store.writer.append(key, data, issue=issue_of(store, key))


def issue_of(store: RunStore, key: tuple[int, int, int]) -> int:
    return next((row.issue for row in store.ledger.attempts("running") if row.key == key), 0)


def train(store: RunStore, position: int, batch: int, size: int = 100) -> tuple[int, int, int]:
    key = issue(store, position)
    finish(store, key, size)
    store.ledger.train([key], batch=batch)
    return key


def write_model(folder: Path) -> None:
    (folder / "model").mkdir()
    (folder / "model" / "weights.bin").write_bytes(b"w" * 5000)
    (folder / "optimizer.bin").write_bytes(b"o" * 5000)


def checkpoint(store: RunStore, number: int, branch: int = 0) -> Prepared:
    prepared = store.checkpoints.prepare(number, write_model)
    store.checkpoints.commit(prepared, branch=branch, number=number, state={"step": number})
    return prepared


def segments_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the journal's files that are looked through from now on."""
    read: list[str] = []

    def watched(path: Path, *more: object) -> object:
        read.append(path.name)
        return scan(path, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(reading, "scan", watched)
    return read
