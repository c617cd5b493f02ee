"""Where another run's weights are: found by what lies in its folder, whatever format its record has.

Only checkpoints that are whole have their manifest, so a run that goes on, or was killed, can be begun from too.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.config.values.paths import path_of
from headrace.store.errors import RunDamaged, RunMissing, write_failed
from headrace.store.media.files import remove, sha256_of, sync_path
from headrace.store.sealed_files import MANIFEST_NAME

ORIGIN_NAME = "origin"
"""A run's folder of what it began from."""
_LEFT_OUT = "reference"
"""Of a checkpoint: a run has a reference of its own."""
_TRAINER_RECORD = "trainer.json"
_TRAINER_TENSORS = "trainer*.safetensors"
"""In one file, or in one of each rank."""


@dataclass(frozen=True, slots=True)
class Origin:
    name: str
    """As a config names it: with the version, if there are several."""
    path: Path
    """Holds `model`, and what else a checkpoint has."""

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def critic(self) -> Path | None:
        """Laid out as `path` itself."""
        folder = self.path / "critic"
        return folder if folder.is_dir() else None

    @property
    def has_trainer_state(self) -> bool:
        """Whether master weights and the optimiser's moments are there."""
        return (self.path / _TRAINER_RECORD).is_file() and any(self.path.glob(_TRAINER_TENSORS))


def find_origin(given: str) -> Origin:
    """`given`: RUN, RUN@N, a checkpoint's folder, or that of an offline trainer. Raises RunMissing."""
    name, step = split_version(given)
    folder = path_of(name)
    if not folder.is_dir():
        raise RunMissing(f"--from {given}: there is no folder {folder}; correct the path")
    if (folder / "checkpoints").is_dir():
        return _of_run(name, folder, step)
    for candidate in (folder, folder / "checkpoint"):
        if not (candidate / "model" / "config.json").is_file():
            continue
        if step is not None:
            raise RunMissing(f"--from {given}: {folder} has no checkpoints of versions; leave @{step} out")
        return Origin(name, candidate)
    if (folder / "config.json").is_file():
        raise RunMissing(f"--from {given}: {folder} is a model, not a run; set model.path to it")
    raise RunMissing(f"--from {given}: {folder} holds neither a run nor a checkpoint; correct the path")


def split_version(given: str) -> tuple[str, int | None]:
    """The folder that `given` names, and N of RUN@N or RUN@vN."""
    name, at, number = given.rpartition("@")
    if not (at and number.removeprefix("v").isdecimal()) or path_of(given).is_dir():
        return given, None
    return name, int(number.removeprefix("v"))


def _of_run(name: str, folder: Path, step: int | None) -> Origin:
    kept = dict(sorted(_checkpoints(folder / "checkpoints")))
    if not kept:
        raise RunMissing(f"--from {name}: {folder} has no checkpoint with weights yet")
    number = max(kept) if step is None else step
    if number not in kept:
        there = ", ".join(f"@{one}" for one in kept)
        raise RunMissing(f"--from {name}@{number}: {folder} kept no checkpoint of that version; it has {there}")
    return Origin(f"{name}@{number}", kept[number])


def _checkpoints(folder: Path) -> Iterator[tuple[int, Path]]:
    """Of one version, the newest comes last."""
    for path in sorted(folder.glob("step_*"), key=lambda path: path.stat().st_mtime_ns):
        manifest = _manifest(path)
        if manifest is not None and (path / "model").is_dir():
            yield int(manifest["number"]), path


def _manifest(folder: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((folder / MANIFEST_NAME).read_text())
        return manifest if isinstance(manifest["number"], int) and isinstance(manifest["files"], dict) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def taken_origin(run: Path, name: str) -> Origin | None:
    """What the run in that folder has taken, so that it outlives its source."""
    folder = run / ORIGIN_NAME
    return Origin(name, folder) if folder.is_dir() else None


def take_origin(origin: Origin, run: Path) -> Origin:
    """Have the run keep its origin's files: links to them where the file system allows it, else copies. Whole or not
    there. Raises RunDamaged if one is not what its manifest says, RunMissing if one is gone, DiskFull, StoreError."""
    beside, final = run / f"{ORIGIN_NAME}.new", run / ORIGIN_NAME
    try:
        remove(beside)
        # All of them before any is read, which takes long: a run that goes on lets go of its older checkpoints.
        _take_files(origin, beside)
        expected = _expected(origin, beside)
        taken = [place for place in expected if (beside / place).is_file()]
        for place in taken:
            if sha256_of(beside / place) != expected[place]["sha256"]:
                source = origin.path / place
                raise RunDamaged(f"{source} is damaged: its sha256 is not that of its manifest; begin from another")
        # A checkpoint may have been stripped of files by hand, and one that its run removes ends without any.
        if len(taken) < len(expected) and not (origin.path / MANIFEST_NAME).is_file():
            raise _gone(origin)
        os.rename(beside, final)
        sync_path(run)
    except OSError as error:
        remove(beside)
        raise write_failed(error, final) from error
    except BaseException:
        remove(beside)
        raise
    return Origin(origin.name, final)


def _take_files(origin: Origin, folder: Path) -> None:
    try:
        for source in sorted(origin.path.rglob("*")):
            place = source.relative_to(origin.path)
            if source.is_dir() or place.parts[0] == _LEFT_OUT:
                continue
            target = folder / place
            target.parent.mkdir(parents=True, exist_ok=True)
            _link_or_copy(source, target)
    except FileNotFoundError as error:
        raise _gone(origin) from error


def _expected(origin: Origin, taken: Path) -> dict[str, dict[str, Any]]:
    """What the manifest says of files to take, by their path in the folder; of a folder that has none, nothing."""
    manifest = _manifest(taken)
    if manifest is None and (split_version(origin.name)[1] is not None or not taken.is_dir()):
        raise _gone(origin)
    files: dict[str, dict[str, Any]] = {} if manifest is None else manifest["files"]
    return {place: said for place, said in files.items() if Path(place).parts[0] != _LEFT_OUT}


def _gone(origin: Origin) -> RunMissing:
    return RunMissing(
        f"--from {origin.name}: {origin.path} went while it was taken, as a run that goes on removes its older "
        "checkpoints; begin from a newer one, with --fresh"
    )


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)  # checkpoints are never written again, only removed
    except OSError:
        shutil.copyfile(source, target)
        sync_path(target)
