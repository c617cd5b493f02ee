"""All tests: which device they compute on, and parts of the whole."""

import os

import pytest
from hypothesis import settings

settings.register_profile("suite", derandomize=True)
settings.load_profile("suite")

# Several processes of tests share the processors: a team of threads that waits in a loop keeps the others from work.
# Before torch is imported; whoever a test starts has it from here.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if os.environ.setdefault("HEADRACE_TEST_DEVICE", "cpu") == "cpu":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="I/N", help="every N-th test from the I-th on")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ["HEADRACE_TEST_DEVICE"] != "cpu":
        skip = pytest.mark.skip(reason="of the CPU")
        for item in items:
            if item.get_closest_marker("cpu"):
                item.add_marker(skip)
    if part := config.getoption("--part"):
        place, _, count = part.partition("/")
        if not (place.isdecimal() and count.isdecimal() and 1 <= int(place) <= int(count)):
            raise pytest.UsageError(f"--part is {part!r}; give I/N, as 1/3")
        chosen = items[int(place) - 1 :: int(count)]
        kept = set(map(id, chosen))
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
        items[:] = chosen
