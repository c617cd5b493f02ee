"""Runs whose versions go over relays: the same weights as by shared memory, whoever is killed on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from children import child
from controller_jobs import ALONE, make_job
from safetensors.torch import load_file

from headrace.cli.main import main
from headrace.store import RunReader
from headrace.weights.relay.relays import Relays

pytestmark = [pytest.mark.slow, pytest.mark.cpu]

APART: dict[str, Any] = {
    **ALONE,
    "engine__process": True,
    "trainer__placement": "process",
    "async__mode": "sync",
    "runtime__threads": 1,
}


def ran(folder: Path, transport: str, **changes: Any) -> tuple[dict[str, torch.Tensor], list[tuple[Any, ...]], Any]:
    """Of a finished run: the last weights, the mean reward of each batch, and what was carried."""
    job = make_job(folder / "job", trainer__batches=3, **APART, weights__transport=transport, **changes)
    assert main(["train", str(job), "data.shuffle=false", "--dir", str(folder / "run"), "--plain"]) == 0
    with RunReader(folder / "run") as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        batches = [(row.number, row.record["reward_mean"]) for row in reader.metrics.read("batch")]
        carried = [event.data for event in reader.events.read() if event.kind == "weights_carried"]
        assert [event for event in reader.events.read() if event.kind.endswith(("_left_out", "_failed"))] == []
    return load_file(folder / "run" / "checkpoints" / "step_3" / "model" / "model.safetensors"), batches, carried


@pytest.mark.soak
def test_a_run_is_the_same_over_relays(tmp_path: Path) -> None:
    weights, batches, carried = ran(tmp_path / "relays", "collective", weights__deltas=True)
    others, by_shm, nothing = ran(tmp_path / "shm", "shm")
    assert batches == by_shm
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    assert [each["version"] for each in carried] == ["v0", "v1", "v2", "v3"]
    assert carried[0]["share"] == 1.0
    assert all(each["relays"] == [1] and each["transport"] == "collective (gloo)" for each in carried)
    assert all(each["bytes_per_s"] > 0 for each in carried)
    assert nothing == []


def test_the_run_goes_on_whoever_is_killed_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine's relay, the trainer's, and the trainer itself, each as a version leaves."""
    carry, victims = Relays.carry, iter([None, None, "relay/2", None, "relay/0", None, "trainer/0"])

    async def watched(relays: Relays, address: str) -> None:
        if (victim := next(victims, None)) is not None:
            process = child(victim)
            process.kill()
        await carry(relays, address)

    monkeypatch.setattr(Relays, "carry", watched)
    job = make_job(
        tmp_path / "job",
        trainer__batches=8,
        **{**APART, "async__mode": "async"},
        engine__replicas=2,
        weights__transport="collective",
        weights__deltas=True,
    )
    assert main(["train", str(job), "--dir", str(tmp_path / "run"), "--plain"]) == 0
    with RunReader(tmp_path / "run") as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        assert {row.number for row in reader.metrics.read("batch")} == set(range(1, 9))
        events = [(event.kind, event.data) for event in reader.events.read()]
    left_out = [(data["relay"], data["message"]) for kind, data in events if kind == "relay_left_out"]
    assert sorted(relay for relay, why in left_out if "is lost" in why) == [0, 2]
    others = [(relay, why) for relay, why in left_out if "is lost" not in why]
    assert all(relay == 0 and "holds no version any more" in why for relay, why in others), "while the trainer is away"
    assert [kind for kind, _ in events if kind in ("trainer_lost", "went_back")] == ["trainer_lost", "went_back"]
    for engine in (0, 1):
        taken = [version(data["version"]) for kind, data in events if kind == "swap" and data["engine"] == engine]
        assert taken == sorted(set(taken))
        assert taken[-1] == (1, 8), "of the branch that the run went back to"


def version(text: str) -> tuple[int, int]:
    """Branch and number of v3~1."""
    number, _, branch = text.removeprefix("v").partition("~")
    return int(branch or 0), int(number)
