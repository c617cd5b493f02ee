"""The figures of docs/servers.md are those that the benchmark wrote, beside their targets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
Figures = Mapping[str, Any]
FOUND: list[Figures] = [
    json.loads((ROOT / "benchmarks/results" / f"servers_{kind}.json").read_text()) for kind in ("vllm", "sglang")
]


def swap(mode: str) -> Callable[[Figures], str]:
    def told(figures: Figures) -> str:
        found = figures["float32"][f"pause, {mode}"]
        return f"{found['median']:.2f} s ({found['min']:.2f} to {found['max']:.2f})"

    return told


def gap(figures: Figures) -> str:
    found = figures["float32"]["gap"]
    return f"{found['mean']:.1e}, {found['largest']:.1e}".replace("e-0", "e-")


def gap_in_bfloat16(figures: Figures) -> str:
    found = figures["bfloat16"]["gap"]
    return f"{found['mean']:.4f}, {found['largest']:.4f}"


def weights(figures: Figures) -> str:
    least, _, most = figures["bfloat16"]["gap"]["weights"]
    return f"{least:.3f}, {most:.3f}"


def elsewhere(figures: Figures) -> str:
    return f"{figures['death']['elsewhere']['median']:.2f} s"


def back(figures: Figures) -> str:
    return f"{figures['death']['serves_again']:.1f} s, {figures['death']['start']:.1f} s"


ROWS: Mapping[str, tuple[str, Callable[[Figures], str], Callable[[Figures], bool] | None]] = {
    "gap of its log-probs": (
        "5e-6, 2e-5",
        gap,
        lambda each: each["float32"]["gap"]["mean"] <= 5e-6 and each["float32"]["gap"]["largest"] <= 2e-5,
    ),
    "the same in bfloat16": ("reported", gap_in_bfloat16, None),
    "the importance weights": ("reported", weights, None),
    "from the call for new weights": (
        "0.4 s",
        swap("recompute"),
        lambda each: each["float32"]["pause, recompute"]["median"] <= 0.4,
    ),
    "the same: `keep`": ("0.4 s", swap("keep"), lambda each: each["float32"]["pause, keep"]["median"] <= 0.4),
    "its core killed": ("2 s", elsewhere, lambda each: each["death"]["elsewhere"]["median"] <= 2),
    "until it serves again": (
        "5 s more",
        back,
        lambda each: each["death"]["serves_again"] <= each["death"]["start"] + 5,
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_as_it_was_measured(name: str) -> None:
    target, told, is_met = ROWS[name]
    lines = (ROOT / "docs/servers.md").read_text().splitlines()
    (row,) = (line for line in lines if line.startswith(f"| {name}"))
    _, _, *cells, met, _ = (cell.strip() for cell in row.split("|"))
    assert cells == [target, *map(told, FOUND)]
    right = {True: "yes", False: "no", None: ""}[None if is_met is None else all(map(is_met, FOUND))]
    assert met.partition(",")[0] == right
