"""The watchdog of a run's event loop, which workflows, environments and filters of the user's run in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.config import TrainConfig
from headrace.config.named import is_own
from headrace.rollout.plugins import file_of
from headrace.runtime.watchdog import LoopWatchdog


def watchdog(config: TrainConfig, record: Path | None = None) -> LoopWatchdog:
    """`record`: the run's database, if there is a run. What the config names must be loaded."""
    places = _places(config.model_dump(mode="json", by_alias=True))
    return LoopWatchdog(
        owners={file: key for key, spec in places if (file := file_of(spec))},
        ends_after_s=config.runtime.stall_timeout_s,
        record=record,
    )


def _places(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Each (key, text) that may be the place of something of the user's own."""
    match value:
        case dict():
            for name, inner in value.items():
                yield from _places(inner, f"{key}.{name}" if key else name)
        case list():
            for inner in value:
                yield from _places(inner, key)
        case str() if is_own(value):
            yield key, value
