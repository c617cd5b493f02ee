"""Values that are either a name of ours or the place of a function of the user's own."""

from __future__ import annotations

from pydantic import AfterValidator


def is_own(value: str) -> bool:
    """Whether `value` is the place of a function, as `path.py:function`."""
    return ":" in value


def one_of(*known: str) -> AfterValidator:
    """To annotate a field with: `known`, or `path.py:function`."""

    def check(value: str) -> str:
        if value not in known and not is_own(value):
            names = f"{', '.join(known)}, or a" if known else "a"
            raise ValueError(f"{value!r} is not known; use {names} function of yours: path.py:function")
        return value

    return AfterValidator(check)
