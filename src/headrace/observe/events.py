"""What events of a run go to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

EventSink = Callable[[str, dict[str, Any]], None]
"""Writes an event to the run's record: its kind, and its data, of plain values."""
