"""What is told in one line, and what shows its traceback."""

import traceback

import pytest

import headrace
from headrace.api.errors import for_caller, is_told
from headrace.config import ConfigError
from headrace.errors import HeadraceError
from headrace.experience.schedule import ScheduleError
from headrace.runtime.local.service import as_worker_error
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.workers import WorkerError, WorkerLost
from headrace.store import RunInUse
from headrace.training.protocol import CheckpointError
from headrace.weights.plane import WeightError

TOLD: list[HeadraceError] = [
    ConfigError("lr is 0"),
    RunInUse("another process"),
    WaitTimeout("a row", 1.0),
    WorkerLost(0, "it ended"),
    RefLost(Ref("rollout/0", 1, ("tokens",))),
    CheckpointError("no file"),
    WeightError("not whole"),
    *(
        getattr(headrace, name)("it failed")
        for name in ("EngineError", "NothingToTrain", "OutOfMemory", "PieceError", "TrainingDiverged")
    ),
]


@pytest.mark.parametrize("error", TOLD, ids=lambda error: type(error).__name__)
def test_what_a_user_is_to_read_is_a_headrace_error(error: HeadraceError) -> None:
    assert isinstance(error, headrace.HeadraceError)
    assert is_told(error)
    with pytest.raises(HeadraceError) as raised:
        raise error
    assert for_caller(raised.value).__traceback__ is None


@pytest.mark.parametrize(
    ("name", "base"),
    [("ConfigError", ValueError), ("WaitTimeout", TimeoutError), ("StoreError", RuntimeError)],
)
def test_each_is_also_what_it_is_to_python(name: str, base: type[Exception]) -> None:
    assert issubclass(getattr(headrace, name), base)


@pytest.mark.parametrize("error", [ScheduleError("lost track"), ValueError("x"), KeyError("y")])
def test_faults_are_not_told(error: Exception) -> None:
    assert not is_told(error)


def test_what_a_worker_raised_is_told_as_it_would_be_here_and_a_fault_shows_where_it_was_raised() -> None:
    told = as_worker_error(ConfigError("path is missing; give another"), "reference/0", 0)
    assert is_told(told)
    assert not told.trace

    def divide() -> float:
        return 1 / 0

    with pytest.raises(ZeroDivisionError) as raised:
        divide()
    fault = as_worker_error(raised.value, "functions/0", 0)
    assert isinstance(fault, WorkerError)
    assert not is_told(fault)
    shown = "".join(traceback.format_exception(fault))
    assert "Raised in functions/0:" in shown
    assert "return 1 / 0" in shown
