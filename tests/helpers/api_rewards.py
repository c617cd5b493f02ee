"""Rewards that a file defines."""

from typing import Any


def letters(response: str, row: dict[str, Any]) -> float:
    """Of a response; something that differs between responses."""
    return sum(map(ord, response)) % 7 / 7


def half(response: str, row: dict[str, Any]) -> float:
    return 0.5


def quarter(response: str, row: dict[str, Any]) -> float:
    return 0.25
