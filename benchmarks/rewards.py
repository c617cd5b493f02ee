"""The rewards that end-to-end benchmarks share. Nothing large is imported: in the sandbox each call is a fork."""

from __future__ import annotations

import re


def reward(response: str, row: dict[str, object]) -> float:
    """From the sum of its characters: cheap, and different between samples."""
    return (sum(map(ord, response)) % 101) / 101


def even_share(response: str, row: dict[str, object]) -> float:
    """The share of its words that have an even number, 0 of no words: to be learnt by answers of any length."""
    numbers = [int(number) for number in re.findall(r"<(\d+)>", response)]
    return sum(number % 2 == 0 for number in numbers) / len(numbers) if numbers else 0.0
