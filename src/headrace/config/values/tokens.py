"""Tokens, which the config names by environment variables and never has itself."""

from __future__ import annotations

import os

from headrace.config.errors import ConfigError


def token_of(key: str, name: str) -> str:
    """What this process's environment variable `name` holds, which `key` gives. Raises ConfigError."""
    if not (token := os.environ.get(name)):
        raise ConfigError(f"{key} names {name}, which is not set; export it, or leave {key} out")
    if token != token.strip() or not token.isprintable():
        raise ConfigError(
            f"{key} names {name}, which has white space at an end, or a character that cannot be printed, as a file "
            "with Windows line ends leaves it; correct it"
        )
    return token
