"""Rows of data given in Python, as the lines of a JSONL file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from headrace.config.errors import ConfigError
from headrace.experience.sources.joined_fields import without_joined

_MEND = "give rows as dicts, a datasets.Dataset, a pandas frame, or the path of a JSONL file"


def lines_of(data: Any, argument: str) -> Iterator[bytes]:
    """A line for each row of `data`: dicts, a `datasets.Dataset`, a pandas frame, or any iterable of dicts. `argument`
    names it in errors. Raises ConfigError, while the lines are taken, for what is no row, or has no form in JSON."""
    is_frame = _is_frame(data)
    is_table = is_frame or _is_dataset(data)
    for place, row in enumerate(_rows(data, argument, is_frame)):
        if not isinstance(row, Mapping):
            raise ConfigError(f"{argument}: row {place} is a {type(row).__name__}; {_MEND}")
        where = f"{argument}: row {place}"
        try:
            plain = {str(name): _plain(value, f"{where}, column {name!r}", is_frame) for name, value in row.items()}
            if is_table:
                plain = {name: without_joined(value) for name, value in plain.items()}
        except RecursionError as error:
            raise ConfigError(f"{where} holds itself, or is nested too deeply; give plain values") from error
        yield json.dumps(plain).encode() + b"\n"


def _is_frame(data: Any) -> bool:
    """A pandas frame, or one of the same make; pandas need not be installed."""
    return hasattr(data, "columns") and callable(getattr(data, "to_dict", None))


def _is_dataset(data: Any) -> bool:
    """Of the package `datasets`, which need not be installed."""
    return any(kind.__module__.partition(".")[0] == "datasets" for kind in type(data).__mro__)


def _rows(data: Any, argument: str, is_frame: bool) -> Iterable[Any]:
    if is_frame:
        return data.to_dict("records")
    if isinstance(data, Mapping):
        known = ", ".join(map(str, list(data)[:4]))
        raise ConfigError(
            f"{argument} is a {type(data).__name__} of {known}, not rows; give one of them, or {_MEND[5:]}"
        )
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise ConfigError(f"{argument} is a {type(data).__name__}; {_MEND}")
    return data


def _plain(value: Any, where: str, is_frame: bool) -> Any:
    """`value` as JSON has it. In a frame, what is missing is NaN."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        if is_frame and math.isnan(value):
            return None
        raise ConfigError(f"{where} is {value}, which JSON has no form for; give a finite number, or None")
    if isinstance(value, Mapping):
        return {str(name): _plain(one, where, is_frame) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, where, is_frame) for one in value]
    if type(value).__name__ in ("NAType", "NaTType"):  # pandas' own words for what is missing
        return None
    if callable(getattr(value, "tolist", None)):  # arrays and their numbers
        return _plain(value.tolist(), where, is_frame)
    raise ConfigError(f"{where} is a {type(value).__name__}, which JSON has no form for; make it text or numbers")
