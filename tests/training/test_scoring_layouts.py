"""Ranks that only score, of every layout, say what one says: before and after they take new weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_once import made_once
from rank_processes import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.cpu, pytest.mark.timeout(500)]
RANKS = 4
ONE = "one"
LAYOUTS: dict[str, dict[str, Any]] = {
    ONE: {},
    "d2": {"dp": 2},
    "d4z3": {"dp": 4, "zero": 3},
    "t2": {"tp": 2, "zero": 3},
    "d2t2": {"dp": 2, "tp": 2, "zero": 3},
    "d2c2": {"dp": 2, "cp": 2, "zero": 3},
    "p2": {"pp": 2, "zero": 2},
    "d2p2": {"dp": 2, "pp": 2, "zero": 2},
    "t2p2": {"tp": 2, "pp": 2, "zero": 2},
    "d4r2": {"dp": 4, "replicas": 2, "zero": 3},
    "d2e2": {"dp": 2, "ep": 2, "zero": 3},
    "d2t2e2": {"dp": 2, "tp": 2, "ep": 2, "zero": 3},
}


def case(model: str, layout: str, **more: Any) -> dict[str, Any]:
    name = "-".join([model, layout, *(f"{key}={value}" for key, value in more.items())])
    return {"name": name, "model": model, "layout": LAYOUTS[layout], **more}


def cases() -> list[dict[str, Any]]:
    found = [case("qwen3", layout) for layout in LAYOUTS if "e2" not in layout]
    found += [case("qwen3", layout, kept=True) for layout in (ONE, "t2p2", "d2c2")]
    found += [case("qwen3", layout, only=2) for layout in (ONE, "d4z3", "d2p2")]
    found += [case("qwen3", layout, dtype="bfloat16") for layout in (ONE, "d2t2")]
    found += [case("gpt2", layout) for layout in (ONE, "d4z3")]
    found += [case("qwen3_moe", layout, routed=True) for layout in (ONE, "d2e2", "d2t2e2", "t2p2")]
    found += [
        case("qwen3", layout, reward=True) for layout in (ONE, "d2", "d4z3", "d2c2", "p2", "d2p2", "d2t2", "t2p2")
    ]
    found += [case("qwen3_moe", layout, reward=True) for layout in (ONE, "d2t2e2")]
    found += [case("gpt2", layout, reward=True) for layout in (ONE, "d4z3")]
    return [*found, case("qwen3", "t2", breaks=True)]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_once(
        tmp_path_factory, "scoring_layouts", lambda folder: run_ranks("scoring_rank.py", folder, cases(), RANKS)
    )


def read(ran: Path, name: str) -> list[dict[str, Any]]:
    """What each rank says."""
    return [json.loads(path.read_text()) for path in sorted((ran / name).glob("found-*.json"))]


def scores(ran: Path, name: str, which: str) -> dict[int, np.ndarray]:
    """By row. Each is one rank's."""
    found: dict[int, np.ndarray] = {}
    for told in read(ran, name):
        mine = {int(place): np.array(values) for place, values in told.get(which, {}).items()}
        assert not mine.keys() & found.keys()
        found |= mine
    return found


def of_one(name: str) -> str:
    model, _, *more = name.split("-")
    return "-".join([model, ONE, *more])


@pytest.mark.parametrize(
    "name", [each["name"] for each in cases() if f"-{ONE}" not in each["name"] and "breaks" not in each]
)
def test_ranks_score_as_one_does(ran: Path, name: str) -> None:
    off = 2e-2 if "bfloat16" in name else 1e-6
    for which in ("first", "second"):
        one, found = scores(ran, of_one(name), which), scores(ran, name, which)
        assert found.keys() == one.keys()
        most = max((np.abs(values).max() for values in one.values()), default=0.0)
        for place, values in one.items():
            assert np.abs(found[place] - values).max() <= off * most, (which, place)
    assert set(scores(ran, name, "first")) == set(range(2 if "only" in name else 8))


@pytest.mark.parametrize("name", ["qwen3-d4z3", "qwen3-d2t2", "qwen3-t2p2", "qwen3-d4z3-reward=True"])
def test_a_rank_has_its_part_alone(ran: Path, name: str) -> None:
    (one,), ranks = read(ran, of_one(name)), read(ran, name)
    assert (
        sum(told["bytes"] for told in ranks) < 1.3 * one["bytes"]
    )  # but what no axis cuts, and the matrix at both ends
    for told in ranks:
        assert told["bytes"] < 0.4 * one["bytes"]


def test_where_one_does_not_receive_a_version_none_takes_it(ran: Path) -> None:
    """And none waits for it, in a pass that checks what came."""
    of_first, of_second = (told["error"] for told in read(ran, "qwen3-t2-breaks=True"))
    assert of_first == f"another rank of the model did not receive a version: {of_second}"
    assert of_second
