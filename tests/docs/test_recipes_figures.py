"""That all recipes learn is told in docs/recipes.md with the figures that the benchmark wrote."""

from __future__ import annotations

import json
import typing
from pathlib import Path

from headrace.config.algorithm import RecipeName

ROOT = Path(__file__).parents[2]


def test_the_range_that_is_told_is_that_of_all_recipes_and_seeds() -> None:
    found = json.loads((ROOT / "benchmarks/results/recipes_amd.json").read_text())
    assert {row["recipe"] for row in found["rows"]} == {*typing.get_args(RecipeName)}
    before, after = ([row[f"accuracy_{when}"] for row in found["rows"]] for when in ("before", "after"))
    words = (ROOT / "docs/recipes.md").read_text().replace("\n", " ")
    told = f"{min(before):.2f}–{max(before):.2f} of 256 held-out prompts right to {min(after):.2f}–{max(after):.2f}"
    assert f"from {told} in {found['batches']} batches, over {found['seeds']} seeds on an AMD CPU" in words
    assert "AMD" in found["machine"]["processor"]
