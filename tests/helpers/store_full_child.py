"""Fills a small disk in one way, then frees it and goes on. `python store_full_child.py RUN WAY`; prints `ok`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from store_helpers import checkpoint, finish, issue, payload, reopen, train

from headrace.store import DiskFull, RunStore


def fill_journal(store: RunStore) -> None:
    for position in range(10, 10_000):
        key = issue(store, position)
        finish(store, key, size=20_000)


def fill_ledger(store: RunStore) -> None:
    for position in range(10, 100_000):
        issue(store, position)


def fill_events(store: RunStore) -> None:
    for _ in range(100_000):
        store.events.write(0.0, "said", {"text": "x" * 5000})


def fill_checkpoint(store: RunStore) -> None:
    store.checkpoints.prepare(2, lambda folder: _fill(folder / "weights.bin"))


def fill_and_open(store: RunStore) -> None:
    """There is no room for what SQLite needs beside the database."""
    store.close()
    with suppress(OSError):
        _fill(store.path.parent / "ballast2")
    try:
        reopen(store.path)
    finally:
        (store.path.parent / "ballast2").unlink()


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(b"w" * 4096)


WAYS: dict[str, Callable[[RunStore], None]] = {
    "journal": fill_journal,
    "ledger": fill_ledger,
    "events": fill_events,
    "checkpoint": fill_checkpoint,
    "open": fill_and_open,
}


def main(path: Path, way: str) -> None:
    store = reopen(path)
    key = train(store, 0, batch=0)
    checkpoint(store, 1)
    with pytest.raises(DiskFull, match=rf"{re.escape(str(path))}.*free space on its disk.*--resume"):
        WAYS[way](store)
    if way == "open":
        store = reopen(path)
        store.checkpoints.restore()
    counts = store.ledger.counts()
    counts.check()
    (path.parent / "ballast").unlink()
    more = train(store, 100_000, batch=1)
    store.close()

    again = reopen(path)
    restored = again.checkpoints.restore()
    assert restored.number == 1
    assert more in [row.key for row in restored.ready]
    assert [row.key for row in again.ledger.attempts("trained")] == [key]
    assert again.ledger.counts().issued == counts.issued + 1
    for row in restored.ready:
        assert row.offset is not None
        assert again.journal.read(row.offset) == payload(row.key, row.offset.length)
    again.close()
    sys.stdout.write("ok\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
