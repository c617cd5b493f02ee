"""The best checkpoint of a run, as its record names it: kept beside those that the run can go back to."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.store.media.database import Database
from headrace.store.media.files import LOCAL, Files

_NAME = "best"
LINK_NAME = "best"
"""Of the link in `checkpoints/`."""


@dataclass(frozen=True, slots=True)
class Best:
    """What a version was evaluated at, and where its files are."""

    number: int
    branch: int
    folder: str | None
    """In `checkpoints/`; None for version 0, the initial model."""
    metric: str
    """By which it is the best, as `eval` or `gsm/pass@1`."""
    value: float


def read_best(database: Database) -> Best | None:
    rows = database.rows("SELECT value FROM run WHERE name = ?", (_NAME,))
    return Best(**json.loads(rows[0][0])) if rows else None


def write_best(database: Database, best: Best | None) -> None:
    """Part of the caller's transaction, if there is one."""
    if best is None:
        database.execute("DELETE FROM run WHERE name = ?", (_NAME,))
    else:
        database.execute("INSERT OR REPLACE INTO run VALUES (?, ?)", (_NAME, json.dumps(asdict(best))))


def link_best(checkpoints: Path, folder: str | None, files: Files = LOCAL) -> None:
    """Have `checkpoints/best` lead to `folder` beside it, or to nothing. The record is what counts: a file system that
    has no links goes without."""
    link = checkpoints / LINK_NAME
    current = files.linked(link)
    if current == folder or (current is None and (files.is_file(link) or files.is_folder(link))):
        return
    with suppress(OSError):
        if folder is None:
            files.remove(link)
        else:
            fresh = checkpoints / f".{LINK_NAME}"
            files.remove(fresh)
            files.link(fresh, folder)
            files.rename(fresh, link)
        files.sync(checkpoints)
