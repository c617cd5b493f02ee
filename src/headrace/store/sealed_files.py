"""The files of a checkpoint: made durable with a manifest of what they hold, and compared with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.store.errors import RunDamaged, StoreError
from headrace.store.media.files import Digest, Files, digest_of, sha256_of

MANIFEST_NAME = "manifest.json"


def seal(folder: Path, number: int, store: Files, known: Mapping[str, Digest]) -> dict[str, dict[str, Any]]:
    """Checksum every file, add the manifest, and fsync all of it. Raises StoreError for a file that is not as long as
    is `known` of it."""
    paths = store.below(folder)
    files = {}
    for path in paths:
        if not store.is_file(path):
            continue
        name = path.relative_to(folder).as_posix()
        found = known.get(name) or digest_of(path, store)
        if (size := store.size(path)) != found.size:
            raise StoreError(f"{path} has {size} bytes, and whoever wrote it says {found.size}")
        files[name] = {"bytes": found.size, "sha256": found.sha256}
    manifest, told = folder / MANIFEST_NAME, {"number": number, "files": files}
    if boxes := {name: known[name].boxes for name in files if name in known and known[name].boxes}:
        told["boxes"] = boxes
    store.write(manifest, json.dumps(told, indent=1).encode())
    for path in [*paths, manifest, folder]:
        store.sync(path)
    return files


def verify(folder: Path, recorded: dict[str, dict[str, Any]], older: int | None, files: Files) -> None:
    """Compare the files with what `seal` said of them. `older`: number of the checkpoint that there is beside this one,
    for the mend. Raises RunDamaged, which names the file."""
    for name, expected in recorded.items():
        path = folder / name
        fault = _fault(path, expected, files)
        if fault is None:
            continue
        mend = (
            f"delete the folder {folder} to resume from step_{older}"
            if older
            else f"delete the folder {folder} to resume from version 0, the initial model"
            if older == 0
            else "no older checkpoint is kept, so start the run again with --fresh"
        )
        raise RunDamaged(f"{path} is damaged ({fault}): put back a copy of it, or {mend}")


def _fault(path: Path, expected: dict[str, Any], files: Files) -> str | None:
    if not files.is_file(path):
        return "it is missing"
    size = files.size(path)
    if size != expected["bytes"]:
        return f"it has {size} bytes instead of {expected['bytes']}"
    found = sha256_of(path, files)
    if found != expected["sha256"]:
        return f"its sha256 is {found}, not {expected['sha256']}"
    return None
