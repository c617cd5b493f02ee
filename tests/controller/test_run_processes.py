"""What a run's processes take of this machine before any has a model."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config import ConfigError, TrainConfig
from headrace.controller.planning import run_processes
from headrace.controller.planning.run_processes import (
    NO_PROCESSES,
    check_room,
    processes_here,
    processor_notes,
)

MIB = 2**20


def config(**more: Any) -> TrainConfig:
    return TrainConfig(
        model={"path": "m"},  # type: ignore[arg-type]
        data={"train": "d"},  # type: ignore[arg-type]
        **more,
    )


def test_a_run_without_processes_has_none() -> None:
    assert processes_here(config(), 0) == NO_PROCESSES


def test_those_that_compute_and_those_that_play_are_counted() -> None:
    ranks = config(trainer={"placement": "process", "layout": "d3"}, engine={"process": True, "replicas": 2})
    found = processes_here(ranks, 4)
    assert (found.count, found.size) == (3 + 2 + 4, (5 * 190 + 4 * 56) * MIB)


def test_of_a_cluster_that_is_joined_none_is_known_to_be_here() -> None:
    joined = config(trainer={"layout": "d3"}, runtime={"kind": "ray", "address": "10.0.0.1:6379"})
    assert processes_here(joined, 1) == NO_PROCESSES
    assert processor_notes(joined) == []


def test_more_processes_than_there_is_memory_for_are_refused() -> None:
    many = processes_here(config(trainer={"placement": "process", "layout": "d1000"}), 0)
    with pytest.raises(ConfigError, match=r"1000 processes on this machine, which take 185\.55 GiB .* 20\.00 GiB are"):
        check_room(many, 20 * 1024 * MIB)
    with pytest.raises(ConfigError, match="1000 processes"):
        check_room(many, many.size - 1)
    check_room(many, many.size)


def test_ranks_that_share_processors_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_processes, "available_processors", lambda: 2)
    ranks = config(trainer={"placement": "process", "layout": "d2t2"}, critic={"placement": "process", "layout": "d2"})
    (note,) = processor_notes(ranks)
    assert note == "trainer.layout (d2t2, ZeRO-3) has 4 ranks, which compute on 2 processors in turn"
