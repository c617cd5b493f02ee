"""Which device each is on that computes with a model: the one that a cluster gave it, or one of this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headrace.config import TrainConfig
from headrace.controller.building.device_places import devices_of
from headrace.runtime.workers import Handle


def pool(*named: str) -> Any:
    """Of engines by name, each with its worker's."""
    pairs = [each.split(": ") for each in named]
    members = [SimpleNamespace(index=number, name=name) for number, (name, _) in enumerate(pairs)]
    return SimpleNamespace(members=members, handles=tuple(Handle(worker, 0, "") for _, worker in pairs))


def told(given: Mapping[str, Sequence[str]], who: str, engines: Any, judges: Sequence[Any] = (), **more: Any) -> object:
    """`given`: by a cluster."""
    config = TrainConfig.model_validate({"model": {"path": "m"}, "data": {"train": "d"}, **more})
    runtime: Any = SimpleNamespace(devices=lambda worker: given.get(worker, ()))
    devices = devices_of(config, runtime, engines, judges)
    return {each: [*devices(each)] for each in who.split(", ")}


ENGINES = pool("engine 0: engine/0", "engine 1 (lent): lent/0")


def test_what_a_cluster_gave_is_told_as_it_draws_it() -> None:
    given = {"engine/0": ["slot 1 of b"], "lent/0": ["slot 0"], "trainer/1": ["slot 0"], "judge/1": ["a", "b"]}
    judges = [pool("the judge x: judge/0"), pool("the judge y/1: judge/1")]
    who = "engine 0, engine 1 (lent), trainer/1, the judge y/1"
    assert told(given, who, ENGINES, judges, model={"path": "m", "device": "cpu"}) == {
        "engine 0": ["slot 1 of b"],
        "engine 1 (lent)": ["slot 0"],
        "trainer/1": ["slot 0"],
        "the judge y/1": ["a", "b"],
    }
    assert told({"trainer/0": ["slot 3"]}, "trainer", ENGINES) == {"trainer": ["slot 3"]}


def test_on_one_machine_all_are_on_its_processors_or_ranks_on_devices_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    who = "engine 0, engine 1 (lent), trainer/0, trainer/2, reference"
    assert told({}, who, ENGINES, model={"path": "m", "device": "cpu"}) == {name: ["cpu"] for name in who.split(", ")}
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    on = told({}, who, ENGINES, model={"path": "m", "device": "cuda:1"})
    assert on == {name: ["cuda:3" if name == "trainer/2" else "cuda:1"] for name in who.split(", ")}
    on = told({}, who, ENGINES, model={"path": "m", "device": "cuda"})
    assert on == {name: ["cuda:2" if name == "trainer/2" else "cuda:0"] for name in who.split(", ")}


def test_of_a_server_it_is_known_only_where_a_cluster_placed_it() -> None:
    server = {"kind": "vllm", "url": "http://127.0.0.1:8000"}
    one = pool("engine 0: engine/0")
    model = {"path": "m", "device": "cpu"}
    assert told({}, "engine 0, trainer", one, engine=server, model=model) == {"engine 0": [], "trainer": ["cpu"]}
    assert told({"engine/0": ["GPU 0", "GPU 1"]}, "engine 0", one, engine=server) == {"engine 0": ["GPU 0", "GPU 1"]}
