"""The one kind of error that bad input gets."""

from __future__ import annotations

from headrace.errors import HeadraceError


class ConfigError(HeadraceError, ValueError):
    """What the user gave cannot be run. The message names the value and the mend."""
