"""The copying mode: what would cross between processes goes through the wire codec, though it stays in this one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from headrace.runtime.wire.wire_format import copied
from headrace.runtime.wire.wire_types import WireTypes

ENVIRONMENT = "HEADRACE_COPYING"


def is_copying() -> bool:
    """Whether the environment asks for it, as tests do: HEADRACE_COPYING=1."""
    return os.environ.get(ENVIRONMENT, "") not in ("", "0")


class Carrier:
    """Hands values over. Copying, it raises WireError for what is no plain data, and nothing is shared."""

    def __init__(self, types: WireTypes, *, copying: bool) -> None:
        self._types = types
        self._copying = copying

    @property
    def copies(self) -> bool:
        return self._copying

    def carry(self, value: Any, what: str) -> Any:
        return copied(value, self._types, what) if self._copying else value

    def columns(self, columns: Mapping[str, Any]) -> Mapping[str, Any]:
        carried: dict[str, Any] = self.carry(dict(columns), "the columns")
        return carried
