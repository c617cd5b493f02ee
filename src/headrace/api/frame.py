"""Records as a pandas frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from headrace.config.errors import ConfigError


def frame_of(records: Sequence[Mapping[str, Any]], *, index: str) -> Any:
    """A `pandas.DataFrame`: a row for each record, by its `index`; mappings in it as columns of their own, with dots.

    Raises ConfigError without pandas.
    """
    if find_spec("pandas") is None:
        raise ConfigError(
            "frame() needs pandas: pip install pandas; without it, run.metrics is a sequence, and each of it has "
            "to_json()"
        )
    import pandas

    frame = pandas.json_normalize([dict(record) for record in records])
    return frame.set_index(index) if index in frame else frame
