"""The folder of an offline trainer: its checkpoint while it runs, and in the end its model and its summary."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.config import ConfigError
from headrace.controller.begin import Begin
from headrace.observe.finite_json import finite_json
from headrace.offline.replaced_folder import ReplacedFolder
from headrace.store import RunExists, RunMissing, RunStore, StoreError
from headrace.store.media.files import write_whole
from headrace.store.media.lock import RunLock
from headrace.store.offline import refuse_run


class OutputFolder:
    """Holds a whole model at any moment once it held one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._model = ReplacedFolder(folder / "model")
        self._checkpoint = ReplacedFolder(folder / "checkpoint")
        self._summary = folder / "summary.json"

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def model(self) -> Path:
        return self._model.path

    @property
    def checkpoint(self) -> Path:
        """There while a run is not finished."""
        return self._checkpoint.path

    @contextmanager
    def claim(self, begin: Begin) -> Iterator[RunLock]:
        """Own the folder within: make it, and see that it can be written, before training depends on it. One that
        holds a run is only entered to resume it, or to erase it: then all goes but the model, which stays until it is
        replaced. Nothing that another process writes is touched.

        Raises ConfigError; RunExists or RunMissing where there is a run, or one of `headrace train`, or none to resume;
        RunInUse.
        """
        lock = self._locked(begin)
        try:
            self._enter(begin)
            yield lock
        finally:
            lock.release()

    def _locked(self, begin: Begin) -> RunLock:
        if self._folder.exists() and not self._folder.is_dir():
            raise ConfigError(f"the output folder {self._folder} is a file; give another --dir")
        if begin == "resume" and not self._folder.exists():
            raise RunMissing(f"there is no {self._folder} to resume; begin without --resume")
        refuse_run(self._folder)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            return RunLock(self._folder)
        except OSError as error:
            raise self._not_written(error) from error
        except StoreError as error:
            if isinstance(error.__cause__, OSError):
                raise self._not_written(error.__cause__) from error
            raise

    def _enter(self, begin: Begin) -> None:
        try:
            self._model.tidy()
            self._checkpoint.tidy()
            if begin == "fresh":
                self._summary.unlink(missing_ok=True)
                self._checkpoint.remove()
            elif self.read_finished() is not None:
                self._checkpoint.remove()
        except OSError as error:
            raise self._not_written(error) from error
        if begin == "new":
            self._refuse_taken()
            self._summary.unlink(missing_ok=True)
        if begin == "resume" and not self.checkpoint.exists():
            self._refuse_resume()

    def _not_written(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"the output folder {self._folder} cannot be written: {error.strerror}; correct its permissions, or give "
            "another --dir"
        )

    def _refuse_taken(self) -> None:
        if self.checkpoint.exists():
            raise RunExists(
                f"{self._folder} holds a run that is not finished: continue it with --resume, erase it with --fresh, "
                "or give another --dir"
            )
        if self.model.is_dir():
            raise RunExists(
                f"{self._folder} holds a run that is finished: --resume with the same config leaves it as it is, "
                "replace it with --fresh, or give another --dir"
            )
        if RunStore.exists(self._folder):
            raise RunExists(
                f"{self._folder} holds a run that made no checkpoint, so --resume has nothing to continue: erase it "
                "with --fresh, or give another --dir"
            )

    def _refuse_resume(self) -> None:
        if self.model.is_dir():
            raise RunMissing(
                f"{self._folder} holds a run that is finished, of another config or other data, and nothing to resume; "
                "give another --dir, or begin again with --fresh"
            )
        if RunStore.exists(self._folder):
            raise RunMissing(
                f"{self._folder} holds a run that made no checkpoint to resume; give another --dir, or begin again "
                "with --fresh"
            )
        raise RunMissing(f"{self._folder} holds no checkpoint to resume; begin without --resume")

    def write_checkpoint(self, fill: Callable[[Path], None]) -> None:
        """Raises DiskFull or another StoreError; the one that was there is whole then."""
        self._checkpoint.replace(fill)

    def replace_model(self, export: Callable[[Path], None]) -> None:
        """Have `export` fill an empty folder, and put it in the model's place.

        Raises DiskFull or another StoreError; the model that was there is whole then.
        """
        self._model.replace(export)

    def write_summary(self, summary: dict[str, Any]) -> None:
        """What is not finite as null. Raises DiskFull or another StoreError."""
        with self._model.writing(self._summary):
            write_whole(self._summary, (finite_json(summary, indent=2) + "\n").encode())

    def read_summary(self) -> dict[str, Any] | None:
        """What was written last, if it can be read."""
        try:
            summary = json.loads(self._summary.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return summary if isinstance(summary, dict) else None

    def read_finished(self) -> dict[str, Any] | None:
        """The summary of a run that is finished, as it says itself: what there is of a checkpoint then is what a kill
        left of it."""
        summary = self.read_summary()
        if summary is None or summary.get("status") != "finished" or not self.model.is_dir():
            return None
        return summary

    def finish(self) -> None:
        """The model and the summary are there: the checkpoint goes."""
        self._checkpoint.remove()

    def tidy_finished(self) -> None:
        """Clear away what a kill in the last moment of a run that is finished left of its checkpoint. Raises
        RunInUse."""
        if self._checkpoint.is_left:
            lock = RunLock(self._folder)
            try:
                self.finish()
            finally:
                lock.release()
