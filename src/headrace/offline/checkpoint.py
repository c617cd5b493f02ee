"""The files of an offline trainer's checkpoint: written with a manifest of what they hold, and compared with it before
a run goes on from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.offline.progress import Made, Progress, read_progress, write_progress
from headrace.store import RunDamaged
from headrace.store.media.files import LOCAL, Digest
from headrace.store.sealed_files import MANIFEST_NAME, seal, verify


def write_checkpoint(
    folder: Path, save: Callable[[Path], Mapping[str, Digest]], progress: Progress, made: Made
) -> None:
    """Have `save` write the model's state into the empty folder, and say what the files hold that it knows; durable.
    Raises what `save` does, OSError, StoreError."""
    known = save(folder)
    write_progress(folder, progress, made)
    seal(folder, progress.steps, LOCAL, known)


def read_checkpoint(folder: Path, made: Made) -> Progress:
    """How far the run is. Raises what `read_progress` does, and RunDamaged, naming the file, where one is not what was
    written."""
    progress = read_progress(folder, made)
    verify(folder, _files(folder / MANIFEST_NAME), None, LOCAL)
    return progress


def _files(manifest: Path) -> dict[str, dict[str, Any]]:
    """What `seal` said of each. Raises RunDamaged."""
    try:
        files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
        return {str(name): {"bytes": of["bytes"], "sha256": of["sha256"]} for name, of in files.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunDamaged(f"{manifest} cannot be read ({error}); begin again with --fresh") from error
