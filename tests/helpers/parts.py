"""Parts of all tests that should take about equally long, and an end to what a part begins."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

QUICK, SLOW = 1, 20
"""How long a test takes, in units of a quick one, by what it says of itself: those marked slow take some seconds."""
_NOT_BEGUN = "not begun: the time to begin tests was over"


def weight(item: pytest.Item) -> int:
    """Nothing for one that is skipped."""
    if item.get_closest_marker("skip"):
        return 0
    return SLOW if item.get_closest_marker("slow") else QUICK


def part_of(weights: Sequence[int], place: int, count: int) -> list[int]:
    """Indices of the `place`-th of `count` parts, from 1 on: the heavy ones first, as what is begun at the end is to
    end soon. Each goes to the lightest part so far, heavy ones before the others."""
    order = sorted(range(len(weights)), key=lambda index: -weights[index])
    totals, chosen = [0] * count, []
    for index in order:
        lightest = min(range(count), key=lambda part: totals[part])
        totals[lightest] += weights[index]
        if lightest == place - 1:
            chosen.append(index)
    return chosen


class BeginWithin:
    """A plugin: tests that would begin later are skipped, which is told, and the whole has failed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = time.monotonic()
        self._left: list[str] = []

    def pytest_runtest_setup(self) -> None:
        """After marks have skipped what they skip, and before anything is set up."""
        if time.monotonic() - self._began > self._seconds:
            pytest.skip(_NOT_BEGUN)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Also of tests in other processes."""
        if report.skipped and _NOT_BEGUN in str(report.longrepr):
            self._left.append(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._left and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._left:
            told = f"{len(self._left)} tests were not begun within {self._seconds:g} s, the first {self._left[0]}"
            terminalreporter.write_line(f"{told}: have more parts", red=True)
