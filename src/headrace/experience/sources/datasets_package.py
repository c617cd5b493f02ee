"""Readers of what the package `datasets` keeps: folders of `save_to_disk`, folders of data files, names on the Hub."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.config import ConfigError
from headrace.config.data import SourceConfig
from headrace.experience.sources.arrow_batches import check_names, readable, rows_of
from headrace.experience.sources.arrow_files import Look
from headrace.experience.sources.rows import Row
from headrace.store import DiskFull

if TYPE_CHECKING:
    import datasets

_READ = 4096
_SAVED = "state.json"
_SAVED_SPLITS = "dataset_dict.json"


class DatasetRows:
    """Rows of a dataset, which it maps into memory from its own files."""

    unit = "row"

    def __init__(self, where: str, dataset: datasets.Dataset) -> None:
        self.where = where
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Row:
        (row,) = (row for batch in self._dataset[index : index + 1].to_batches() for row in rows_of(batch))
        return row

    def number(self, index: int) -> int:
        return index + 1


def read_dataset(source: SourceConfig, look: Look) -> DatasetRows:
    """No code of the dataset's is run: the package has no loading scripts any more."""
    where = source.path
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            f"{where} needs the package datasets, which is not installed; pip install 'headrace[datasets]'"
        ) from error
    with _quiet(), _in_words(source):
        found = _load(source)
        if isinstance(found, datasets.DatasetDict):
            found = found[_split(source, list(found))]
        if not isinstance(found, datasets.Dataset):
            raise ConfigError(f"{where} is a {type(found).__name__}, which has no rows by number; give a plain dataset")
        check_names(found.features.arrow_schema, where)
        dataset = found.select_columns(readable(found.features.arrow_schema)).with_format("arrow")
        start = 0
        for table in dataset.iter(_READ):
            for batch in table.combine_chunks().to_batches():
                look(batch, start)
                start += batch.num_rows
    return DatasetRows(where, dataset)


def _load(source: SourceConfig) -> Any:
    import datasets

    folder = Path(source.path)
    if folder.is_dir():
        if source.revision is not None:
            raise ConfigError(f"{folder} is a folder, which has no revision {source.revision!r}; leave revision out")
        if any((folder / name).exists() for name in (_SAVED, _SAVED_SPLITS)):
            if source.subset is not None:
                raise ConfigError(f"{folder} was saved by save_to_disk and has no subsets; leave subset out")
            return _saved(source, folder)
    return datasets.load_dataset(source.path, name=source.subset, split=source.split, revision=source.revision)


def _saved(source: SourceConfig, folder: Path) -> Any:
    import datasets

    found = datasets.load_from_disk(str(folder))
    if isinstance(found, datasets.Dataset) and source.split is not None:
        raise ConfigError(f"{folder} was saved as one dataset without splits; leave split out")
    return found


def _split(source: SourceConfig, names: list[str]) -> str:
    if source.split is None and len(names) == 1:
        return names[0]
    if source.split in names:
        return str(source.split)
    has = f"{source.path} has the splits {', '.join(names)}"
    raise ConfigError(
        f"{has}; set split to one of them" if source.split is None else f"{has}, not {source.split!r}; correct split"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without progress bars, which would run into the run's own view."""
    import datasets

    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not bars:
            datasets.enable_progress_bars()


def _of_room(error: BaseException) -> OSError | MemoryError | None:
    """What `error` came of, if that was that a disk or memory was full."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, MemoryError) or (isinstance(seen, OSError) and seen.errno in (errno.ENOSPC, errno.EDQUOT)):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


@contextmanager
def _in_words(source: SourceConfig) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # of the package, its builders and its client, which share no base
        lacks = _of_room(error)
        if isinstance(lacks, MemoryError):
            raise
        if lacks is not None:
            raise DiskFull(
                f"no space left while the package datasets cached {source.path!r} ({lacks}); free space on that disk "
                "(or raise the quota), or set HF_HOME to a folder on another one"
            ) from error
        cause = f"; {error.__cause__}" if error.__cause__ is not None else ""
        why = " ".join(f"{error}{cause}".split())
        raise ConfigError(
            f"cannot read {source.path!r} with the package datasets ({type(error).__name__}: {why[:300]}); give a "
            "file, a folder saved by save_to_disk, or a name on the Hub (with its subset, split and revision, and a "
            "connection)"
        ) from error
