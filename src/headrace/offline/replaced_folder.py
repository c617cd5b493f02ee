"""A folder that is replaced as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from headrace.runtime.protocol import WaitTimeout
from headrace.store import DiskFull
from headrace.store.errors import write_failed
from headrace.store.media.files import remove, sync_path


class ReplacedFolder:
    """Whole at any moment once it was there, until it is removed, which is one step too: a kill between the two renames
    of `replace` leaves it as `NAME.old`, and the next `tidy` puts it back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fresh = path.with_name(f"{path.name}.new")
        self._aside = path.with_name(f"{path.name}.old")
        self._gone = path.with_name(f"{path.name}.gone")

    @property
    def is_left(self) -> bool:
        """Whether there is anything of it, also of what a kill left."""
        return any(path.exists() for path in (self.path, self._fresh, self._aside, self._gone))

    def tidy(self) -> None:
        """Clear away what a kill left, and see that a folder can be made here. Raises OSError."""
        remove(self._gone)
        remove(self._fresh)
        self._fresh.mkdir()
        self._fresh.rmdir()
        self._put_back()
        remove(self._aside)

    def replace(self, fill: Callable[[Path], None]) -> None:
        """Have `fill` fill an empty folder, and put it in the place of the one that is there.

        Raises DiskFull or another StoreError; what was there is whole then.
        """
        with self.writing(self.path):
            remove(self._fresh)
            self._fresh.mkdir()
            fill(self._fresh)
            for path in (*self._fresh.rglob("*"), self._fresh):
                sync_path(path)
            remove(self._aside)
            if self.path.exists():
                self.path.rename(self._aside)
            self._fresh.rename(self.path)
            sync_path(self.path.parent)
            remove(self._aside)

    def remove(self) -> None:
        """With all in it, if it is there: a kill leaves it whole, or leaves none. Raises OSError."""
        for path in (self._aside, self._fresh, self._gone):  # `tidy` would put the first one back
            remove(path)
        if self.path.exists():
            self.path.rename(self._gone)
            sync_path(self.path.parent)
            remove(self._gone)

    def _put_back(self) -> None:
        if self._aside.exists() and not self.path.exists():
            self._aside.rename(self.path)

    @contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Around what writes `path`: what fails is told in words, and leaves the folder as it was."""
        try:
            yield
        except Exception as error:
            remove(self._fresh)
            self._put_back()
            # Native writers wrap the system's error in types of their own, the tokenizer's in a plain Exception.
            failure = error if isinstance(error, DiskFull) else write_failed(error, path)
            if isinstance(failure, DiskFull):
                raise DiskFull(
                    f"no space left while writing {path}: free space on its disk, or give another --dir, and run the "
                    "command again (with --resume, if it had begun); what was there before is intact"
                ) from error
            if isinstance(error, OSError | SafetensorError) and not isinstance(error, WaitTimeout):
                raise failure from error
            raise
