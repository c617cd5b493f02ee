"""Memory that is needed, and what for, as lines."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.controller.planning.free_memory import in_units


def memory_lines(
    needed: int, free: int | None, place: str, *, on_device: bool, mend: str, more: list[str] | None = None
) -> list[str]:
    """What is `needed` at once, and whether that is `free` at `place`, if that is known; `more` stands between. `mend`:
    how to need less, for people."""
    beside = "" if on_device else " and activations"
    there = f"{in_units(free)} free on {place}" if free is not None else f"what is free on {place} is known there alone"
    lines = [f"memory    {in_units(needed)}{beside}; {there}", *(more or [])]
    if free is not None and needed > free:
        lines.append(f"  WARNING: that is {in_units(needed - free)} more than is free: free memory, {mend}")
    return lines


def use_lines(uses: Mapping[str, int], on_host: Mapping[str, int]) -> list[str]:
    """`uses`: where the models are. `on_host`: of the host's memory, beside a device."""
    lines = [f"  {use:<44} {in_units(size):>12}" for use, size in uses.items()]
    return lines + [f"  of this host's memory: {use} {in_units(size)}" for use, size in on_host.items()]
