"""Parts of `make gpu-check`: which tests are in which, and that none begins when its time is over."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parts import QUICK, SLOW, part_of

TESTS = Path(__file__).parents[1]
LATE = """
import parts
import pytest

def test_quick():
    pass

@pytest.mark.skip
def test_left_out():
    pass

@pytest.mark.slow
def test_slow():
    now = parts.time.monotonic
    parts.time.monotonic = lambda: now() + SECONDS
"""


def test_each_goes_to_the_lightest_part_heavy_ones_first() -> None:
    """Of 20, 20 and 20 and five of 1: two of the heavy in one of two parts, and all of the light in the other."""
    weights = [QUICK, SLOW, QUICK, QUICK, SLOW, QUICK, SLOW, QUICK]
    assert part_of(weights, 1, 2) == [1, 6]
    assert part_of(weights, 2, 2) == [4, 0, 2, 3, 5, 7]
    assert part_of(weights, 1, 1) == [1, 4, 6, 0, 2, 3, 5, 7]


@given(st.lists(st.sampled_from([0, QUICK, SLOW])), st.integers(1, 9))
def test_each_is_in_one_part_and_no_part_is_heavier_by_more_than_one_test(weights: list[int], count: int) -> None:
    parts = [part_of(weights, place, count) for place in range(1, count + 1)]
    assert sorted(index for part in parts for index in part) == list(range(len(weights)))
    totals = [sum(weights[index] for index in part) for part in parts]
    assert max(totals) - min(totals) <= max(weights, default=0)


@pytest.mark.parametrize(
    ("taken", "code", "told"), [("0", 0, "2 passed, 1 skipped"), ("600", 1, "1 passed, 2 skipped")]
)
def test_none_begins_when_the_time_is_over_which_is_told_and_a_failure(
    taken: str, code: int, told: str, tmp_path: Path
) -> None:
    """The slow one is the first, and takes longer."""
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tmp_path / "test_late.py").write_text(LATE.replace("SECONDS", taken))
    options = ["-p", "no:cacheprovider", "--part", "1/1", "--begin-within", "600", "--rootdir", str(tmp_path)]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS / "helpers"), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == code, ran.stdout + ran.stderr
    assert told in ran.stdout
    left = re.findall(r"(\d) tests were not begun within 600 s, the first .*::(\w+): have more parts", ran.stdout)
    assert left == ([("1", "test_quick")] if code else [])
