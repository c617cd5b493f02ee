"""The one kind of error that bad input gets."""

from __future__ import annotations


class ConfigError(ValueError):
    """What the user gave cannot be run. The message names the value and the mend."""
