"""Which command's config a file is, where nobody says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from headrace.config.base import Section
from headrace.config.errors import ConfigError
from headrace.config.kinds import KINDS
from headrace.config.reading.load import merged

_USUAL = "train"


def recognised(given: str | Path | Mapping[str, Any] | Section, overrides: Sequence[str] = ()) -> str:
    """One of `KINDS`: `train`, unless that does not know all keys and another one does; of those one that has no other
    fault, if there is one. Arguments as of `load_config`. Raises ConfigError, also for a file that several take."""
    raw, source = merged(given, overrides)
    faults = {name: _faults(kind, raw) for name, kind in KINDS.items()}
    knowing = [name for name, found in faults.items() if "extra_forbidden" not in found]
    if _USUAL in knowing or not knowing:
        return _USUAL
    fitting = [name for name in knowing if not faults[name]] or knowing
    if len(fitting) > 1:
        raise ConfigError(
            f"{source} is a config of {' and of '.join(f'headrace {name}' for name in fitting)} alike; say whose it is "
            f"by {' or '.join(f'--kind {name}' for name in fitting)}"
        )
    return fitting[0]


def _faults(kind: type[Section], raw: Any) -> list[str]:
    """Pydantic's types of them."""
    try:
        kind.model_validate(raw)
    except ValidationError as error:
        return [detail["type"] for detail in error.errors()]
    return []
