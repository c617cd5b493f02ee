"""All tests: which device they compute on, and parts of the whole."""

import gc
import itertools
import os

import pytest
from parts import BeginWithin, part_of, weight

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # the trackers' environment does without
    pass
else:
    # How long something takes is no test's matter: the machine may have others at work.
    slow = [HealthCheck.too_slow]
    settings.register_profile("suite", derandomize=True, deadline=None, suppress_health_check=slow)
    settings.load_profile("suite")

# Several processes of tests share the processors: a team of threads that waits in a loop keeps the others from work.
# Before torch is imported; whoever a test starts has it from here.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if os.environ.setdefault("HEADRACE_TEST_DEVICE", "cpu") == "cpu":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
else:
    # As `models/device_settings.py` does, and before the first product: cuBLAS looks once.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


_TESTS = itertools.count(1)
_FEW = 300
"""Tests after which the garbage of those before is looked for once more: what was in use when it was left out."""


@pytest.fixture(autouse=True)
def what_was_there_is_left_out_of_collections() -> None:
    """A run begins with a full collection (`runtime/collection.py`): modules and tests are a million objects, over
    which each takes a third of a second. Garbage must not be left out with them: it has files open."""
    if next(_TESTS) % _FEW == 0:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="I/N", help="the I-th of N parts, which should take about equally long")
    parser.addoption(
        "--begin-within", type=float, metavar="SECONDS", help="begin no test later, and fail if one is left"
    )


def pytest_configure(config: pytest.Config) -> None:
    if (seconds := config.getoption("--begin-within")) is not None:
        config.pluginmanager.register(BeginWithin(seconds))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "HEADRACE_SOAK" not in os.environ:
        for item in items:
            if item.get_closest_marker("soak"):
                item.add_marker(pytest.mark.skip(reason="make soak"))
    if os.environ["HEADRACE_TEST_DEVICE"] != "cpu":
        skip = pytest.mark.skip(reason="of the CPU")
        for item in items:
            if item.get_closest_marker("cpu"):
                item.add_marker(skip)
    if part := config.getoption("--part"):
        place, _, count = part.partition("/")
        if not (place.isdecimal() and count.isdecimal() and 1 <= int(place) <= int(count)):
            raise pytest.UsageError(f"--part is {part!r}; give I/N, as 1/3")
        chosen = [items[index] for index in part_of([*map(weight, items)], int(place), int(count))]
        kept = set(map(id, chosen))
        config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
        items[:] = chosen
