"""Runs cross no process here, mostly: every second test sends what would through the wire codec."""

import os
from zlib import crc32

import pytest

from headrace.runtime.wire.copying import ENVIRONMENT

_WITHOUT = ("test_plan.py", "test_fault_matrix.py")
"""Nothing crosses in the first; the simulation's own tests stand for the other."""


@pytest.fixture(autouse=True)
def every_second_one_is_in_copying_mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, so that it stays the same one. HEADRACE_COPYING=0 or 1 for all is obeyed."""
    test = request.node
    slow, copied = test.get_closest_marker("slow"), test.get_closest_marker("copied")
    if ENVIRONMENT in os.environ or test.path.name in _WITHOUT or (slow and not copied):
        return
    if os.environ["HEADRACE_TEST_DEVICE"] == "cpu" and crc32(test.name.encode()) % 2:
        monkeypatch.setenv(ENVIRONMENT, "1")
