"""Chooses the reader of a source by what it is: a file's suffix, a folder, or a name on the Hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from headrace.config import ConfigError
from headrace.config.data import SourceConfig
from headrace.config.values.paths import path_of
from headrace.experience.sources.arrow_files import Look, read_arrow, read_parquet
from headrace.experience.sources.compressed import COMPRESSIONS
from headrace.experience.sources.datasets_package import read_dataset
from headrace.experience.sources.rows import Rows, Survey
from headrace.experience.sources.text_files import read_csv, read_json, read_jsonl

_TEXT: dict[str, Callable[[Path, Survey], Rows]] = {
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_json,
    ".csv": read_csv,
    ".tsv": lambda file, survey: read_csv(file, survey, "\t"),
}
_COLUMNS: dict[str, Callable[[Path, Look], Rows]] = {
    ".parquet": read_parquet,
    ".arrow": read_arrow,
    ".feather": read_arrow,
}


class BatchSurvey(Survey, Protocol):
    def look(self, where: str) -> Look:
        """What sees the batches of a source of columns."""
        ...


def open_rows(source: SourceConfig, survey: BatchSurvey) -> Rows:
    """Every row is seen by `survey` before this returns. Raises ConfigError naming the source, the row and the mend."""
    if "://" in source.path:
        raise ConfigError(f"{source.path} is an address, and none is read; fetch the file, and give its path")
    path = path_of(source.path)
    source = source.model_copy(update={"path": str(path)}) if source.path.startswith("~") else source
    kind = path.with_suffix("").suffix.lower() if path.suffix.lower() in COMPRESSIONS else path.suffix.lower()
    if path.is_file():
        options = [name for name in ("subset", "split", "revision") if getattr(source, name) is not None]
        if options:
            raise ConfigError(f"{path} is a file, which has no {options[0]}; leave {options[0]} out")
        if kind in _TEXT:
            return _TEXT[kind](path, survey)
        if kind in _COLUMNS:
            if path.suffix.lower() != kind:
                raise ConfigError(f"{path} is packed twice, since {kind} packs its columns itself; unpack it")
            return _COLUMNS[kind](path, survey.look(str(path)))
        raise ConfigError(
            f"{path} has the suffix {path.suffix!r}, which is no format that is read here; use "
            f"{', '.join([*_TEXT, *_COLUMNS])}, the first five also with .gz or .zst after it"
        )
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is neither file nor folder, and is read more than once; copy it into a file")
    if not path.exists() and (kind in _TEXT or kind in _COLUMNS or not _is_hub_name(source.path)):
        raise ConfigError(f"no dataset at {path}; correct the path, which is relative to the working directory")
    return read_dataset(source, survey.look(source.path))


def _is_hub_name(name: str) -> bool:
    """As `gsm8k` or `openai/gsm8k`."""
    parts = name.split("/")
    return len(parts) <= 2 and all(part and part[0].isalnum() for part in parts)
