"""What an offline trainer is about to train on, read and checked before a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.offline.loop import Source
from headrace.offline.units import Unit


@dataclass(frozen=True, slots=True)
class Inputs:
    source: Source
    units: Sequence[Unit]
    held_out: Sequence[Unit]
    per_batch: int
    """Units of a step."""
