"""The figures of docs/servers.md are those that the benchmark wrote, beside their targets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
Figures = Mapping[str, Any]
KINDS = ("vllm", "sglang")
FOUND, FOUND_ON_AMD = (
    [json.loads((ROOT / "benchmarks/results" / f"servers_{kind}{machine}.json").read_text()) for kind in KINDS]
    for machine in ("", "_amd")
)


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


Row = tuple[str, Callable[[Figures], str], Callable[[Figures], bool] | None]
ROWS: Mapping[str, Row] = {
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


ON_AMD = {
    "to the first token under new weights": "from the call for new weights",
    "the same, `keep`": "the same: `keep`",
    "its core killed": "its core killed",
    "until it serves again": "until it serves again",
}
IN_A_RUN: Mapping[str, Row] = {
    "in a run, its core killed, until all": (
        "2 s",
        lambda each: "{median:.2f} s ({min:.2f} to {max:.2f})".format(**each["last_elsewhere_s"]),
        lambda each: each["last_elsewhere_s"]["median"] <= 2,
    ),
    "in a run, until it serves again": (
        "5 s more",
        lambda each: f"{each['back_s']['median']:.1f} s, {each['start_s']['median']:.1f} s",
        lambda each: each["beyond_start_s"]["median"] <= 5,
    ),
}
"""Of `benchmarks.server_recovery`, on each machine where it was measured with both servers."""


def found_in_a_run(machine: str) -> list[Figures]:
    files = [ROOT / "benchmarks/results" / f"server_recovery_{kind}{machine}.json" for kind in KINDS]
    return [json.loads(file.read_text()) for file in files] if all(file.exists() for file in files) else []


INTEL, AMD = 0, 1
"""The page's tables, by their order."""
TABLES: list[tuple[int, str, Row, list[Figures]]] = [
    *((INTEL, name, row, FOUND) for name, row in ROWS.items()),
    *((AMD, name, ROWS[same], FOUND_ON_AMD) for name, same in ON_AMD.items()),
    *(
        (table, name, row, found)
        for table, machine in ((INTEL, ""), (AMD, "_amd"))
        if (found := found_in_a_run(machine))
        for name, row in IN_A_RUN.items()
    ),
]


@pytest.mark.parametrize(
    ("table", "name", "row", "found"), TABLES, ids=[f"{('Intel', 'AMD')[table]}: {name}" for table, name, *_ in TABLES]
)
def test_a_row_is_as_it_was_measured(table: int, name: str, row: Row, found: list[Figures]) -> None:
    target, told, is_met = row
    lines = (ROOT / "docs/servers.md").read_text().split("On two cores of an AMD EPYC")[table].splitlines()
    (written,) = (line for line in lines if line.startswith(f"| {name}"))
    _, _, *cells, met, _ = (cell.strip() for cell in written.split("|"))
    assert cells == [target, *map(told, found)]
    right = {True: "yes", False: "no", None: ""}[None if is_met is None else all(map(is_met, found))]
    assert met.partition(",")[0] == right


def test_what_kept_sets_cost_is_as_measured() -> None:
    found = json.loads((ROOT / "benchmarks/results/server_kept_sets_vllm.json").read_text())
    kept, wire = found["kept_512_over_cut_512"], found["wire_bytes"]["kept_512"]
    cut = found["tokens_per_s"]["cut_512"]["median"] / found["tokens_per_s"]["whole"]["median"]
    page = " ".join((ROOT / "docs/servers.md").read_text().split())
    assert f"sets of {found['set_size']['mean']:.0f} ids in the mean" in page
    assert f"gives {kept['median']:.2f} as many tokens" in page
    assert f"({kept['min']:.2f} to {kept['max']:.2f}), and {wire / 1000:.1f} kB a token" in page
    assert "costs its CPU build two thirds" in page
    assert cut == pytest.approx(1 / 3, abs=0.03)
