"""What a config names of RUN/inputs/ is what was written there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.config.base import Section
from headrace.config.values.name_or_function import is_own
from headrace.store.inputs import check_input


def check_inputs(config: Section) -> None:
    """Raises ConfigError for a file of RUN/inputs/ that was changed since it was written."""
    for key, text in texts_of(config.model_dump(mode="json", by_alias=True)):
        check_input(key, Path(text.rpartition(":")[0] if is_own(text) else text))


def texts_of(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Each (key, text) of a dumped config."""
    match value:
        case dict():
            for name, inner in value.items():
                yield from texts_of(inner, f"{key}.{name}" if key else name)
        case list():
            for inner in value:
                yield from texts_of(inner, key)
        case str():
            yield key, value
