"""Captures of CUDA graphs, and what must not happen meanwhile. torch's part is stood in for: no device is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from headrace.models import captures

CUDA = torch.device("cuda", 0)
DEADLINE_S = 60


class Watched:
    """The lock, which tells of whoever finds it held."""

    def __init__(self, lock: Any, found_held: Callable[[], None]) -> None:
        self._lock = lock
        self._found_held = found_held

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._found_held()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Device:
    """Says what was done within whose capture."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.second_is_here = threading.Event()
        """It waits for the first, or did not wait."""
        watched = Watched(captures._CAPTURING, self.second_is_here.set)
        monkeypatch.setattr(captures, "_CAPTURING", watched)
        monkeypatch.setattr(torch.cuda, "graph", self._capture)
        monkeypatch.setattr(torch.cuda, "empty_cache", self._empty_cache)

    @contextmanager
    def _capture(self, graph: str, *, pool: object, stream: object, capture_error_mode: str) -> Any:
        assert capture_error_mode == "thread_local", "what other threads allocate is no fault"
        self._does(f"{graph} begins")
        try:
            yield
        finally:
            self._does(f"{graph} ends")

    def _empty_cache(self) -> None:
        self._does("memory is given back")

    def _does(self, what: str) -> None:
        if "first" not in what:
            self.second_is_here.set()
        self.log.append(what)


def capture(graph: Any) -> None:
    with captures.captured(graph, pool=None, stream=None):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize(
    ("second", "then"),
    [
        (lambda: capture("second"), ["second begins", "second ends"]),
        (lambda: captures.give_back(CUDA), ["memory is given back"]),
    ],
)
def test_another_thread_waits_until_a_capture_has_ended(
    monkeypatch: pytest.MonkeyPatch, second: Callable[[], None], then: list[str]
) -> None:
    device = Device(monkeypatch)
    other = threading.Thread(target=second)
    with captures.captured("first", pool=None, stream=None):  # type: ignore[arg-type]
        other.start()
        assert device.second_is_here.wait(DEADLINE_S)
    other.join(DEADLINE_S)
    assert device.log == ["first begins", "first ends", *then]


def test_a_capture_that_failed_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    with pytest.raises(RuntimeError, match="not permitted"), captures.captured("first", pool=None, stream=None):  # type: ignore[arg-type]
        raise RuntimeError("operation not permitted when stream is capturing")
    capture("second")
    assert device.log == ["first begins", "first ends", "second begins", "second ends"]


def test_on_a_cpu_nothing_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    captures.give_back(torch.device("cpu"))
    assert device.log == []
