"""Actor and critic in processes of their own: the same weights, and an end that is told."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from children import child
from controller_jobs import ALONE, make_job
from devices import BETWEEN_PROCESSES
from safetensors.torch import load_file

from headrace.cli.main import main
from headrace.store import RunReader
from headrace.training.following import Following
from headrace.training.group import TrainerGroup
from headrace.weights.transport import of_this_life, open_transport
from headrace.weights.version import Version

KL = {"algorithm__kl__coefficient": 0.1}
OWN_LOSS = """
import os

from headrace.algorithms.losses import Loss


def loss(logprobs, proximal, advantages, mask, sample_index):
    with open(os.environ["WHO_TRAINS"], "w") as who:
        who.write(str(os.getpid()))
    return Loss(-(advantages * logprobs) * mask, {})
"""

HANGS_ONCE = """
import os
import time

from headrace.algorithms.losses import Loss

calls = 0


def loss(logprobs, proximal, advantages, mask, sample_index):
    global calls
    calls += 1
    if calls == 3 and not os.path.exists(os.environ["HUNG"]):
        open(os.environ["HUNG"], "w").close()
        time.sleep(1e6)
    return Loss(-(advantages * logprobs) * mask, {})
"""


def trained(folder: Path, **changes: Any) -> list[dict[str, Any]]:
    """The batches' records of a finished run in `sync`."""
    job = make_job(folder / "job", trainer__batches=3, async__mode="sync", runtime__threads=1, **ALONE, **changes)
    assert main(["train", str(job), "data.shuffle=false", "--dir", str(folder / "run"), "--plain"]) == 0
    with RunReader(folder / "run") as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        return [row.record for row in reader.metrics.read("batch")]


def states(folder: Path) -> dict[str, torch.Tensor]:
    """Master weights and moments of all who train, as the last checkpoint has them."""
    (last,) = (folder / "run" / "checkpoints").glob("step_3")
    found = {}
    for file in last.rglob("*.safetensors"):
        found |= {f"{file.relative_to(last)}:{name}": value for name, value in load_file(file).items()}
    return found


def kill_at_step(patch: pytest.MonkeyPatch, who: str, steps: Sequence[int]) -> None:
    """The process of `who` is killed as it is asked for these steps of its own, counted over all its lives."""
    step, calls = TrainerGroup.step, []

    async def watched(group: TrainerGroup) -> Any:
        calls.append(group.name)
        if group.name == who and calls.count(who) in steps:
            victim = child(f"{who}/0")
            os.kill(victim.pid, signal.SIGKILL)
        return await step(group)

    patch.setattr(TrainerGroup, "step", watched)


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize(
    "changes",
    [
        {**KL, "algorithm__kl__target": 0.01, "reference__placement": "hybrid", "reference__refresh_every": 2},
        {**KL, "reference__refresh_every": 2},
        {**KL, "algorithm__recipe": "ppo", "algorithm__updates_per_batch": 2, "critic__placement": "process"},
        {"algorithm__loss": "m2po", "algorithm__objective": "naive", "algorithm__epochs_per_batch": 2},
    ],
    ids=["hybrid", "refreshed", "ppo", "m2po"],
)
def test_a_run_is_the_same_wherever_it_is_trained(tmp_path: Path, changes: dict[str, Any]) -> None:
    apart = trained(tmp_path / "apart", **changes, trainer__placement="process")
    here = {key: "own" if key == "critic__placement" else value for key, value in changes.items()}
    together = trained(tmp_path / "together", **here)
    for one, other in zip(apart, together, strict=True):
        assert one["loss"] == other["loss"]
        assert one["grad_norm"] == other["grad_norm"]
    of_one, of_other = states(tmp_path / "apart"), states(tmp_path / "together")
    assert of_one.keys() == of_other.keys()
    assert any("master." in name for name in of_one)
    assert [name for name in of_one if not torch.equal(of_one[name], of_other[name])] == []


@pytest.mark.slow
@pytest.mark.cpu
def test_a_loss_of_the_users_own_is_called_where_the_trainer_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(OWN_LOSS)
    monkeypatch.setenv("WHO_TRAINS", str(tmp_path / "who"))
    trained(tmp_path, algorithm__loss=f"{tmp_path}/own.py:loss", trainer__placement="process")
    assert (tmp_path / "who").read_text() != str(os.getpid())


@pytest.mark.slow
@pytest.mark.cpu
@pytest.mark.parametrize(
    ("who", "committed", "more"),
    [
        pytest.param("trainer", 0, {}, marks=pytest.mark.soak),
        ("trainer", 2, {"engine__process": True, "rollout__workers": 1, "functions__placement": "process"}),
        ("critic", 2, {}),
    ],
    ids=["trainer", "trainer beside others", "critic"],
)
def test_one_that_is_killed_goes_back_to_the_commit_and_the_run_goes_on(
    who: str, committed: int, more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the midst of its third step, once."""
    apart = {"trainer__placement": "process", "critic__placement": "process"}
    every = {"checkpoint__every": committed or 9, "checkpoint__background": False}  # it is committed by then
    job = make_job(tmp_path / "job", trainer__batches=4, algorithm__recipe="ppo", **apart, **every, **more)
    kill_at_step(monkeypatch, who, [3])
    assert main(["train", str(job), "--dir", str(tmp_path / "run"), "--plain"]) == 0
    with RunReader(tmp_path / "run") as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        (back,) = [event for event in reader.events.read() if event.kind == "went_back"]
        assert back.data["version"] == f"v{committed}~1"
        assert f"{who}/0" in next(e for e in reader.events.read() if e.kind == "trainer_lost").data["message"]
        assert [row.record["batch"] for row in reader.metrics.read("batch")] == [0, 1, 2, 3]
        assert [row.branch for row in reader.metrics.read("batch")] == [0] * committed + [1] * (4 - committed)
        trained = reader.counts().trained
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["groups"]["trained"] == trained
    assert summary["staleness"]["max"] <= 2


@pytest.mark.slow
@pytest.mark.cpu
def test_one_that_hangs_is_ended_and_the_run_goes_on_from_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a loss of the user's own, once."""
    hung = tmp_path / "hung"
    monkeypatch.setenv("HUNG", str(hung))
    (tmp_path / "own.py").write_text(HANGS_ONCE)
    job = make_job(
        tmp_path / "job",
        trainer__batches=4,
        algorithm__loss=f"{tmp_path}/own.py:loss",
        trainer__placement="process",
        checkpoint__every=1,
        runtime__stuck__microbatch_s=2,
    )
    assert main(["train", str(job), "--dir", str(tmp_path / "run"), "--plain"]) == 0
    with RunReader(tmp_path / "run") as reader:
        assert reader.status().name == "finished"
        reader.counts().check()
        lost = next(event for event in reader.events.read() if event.kind == "trainer_lost").data["message"]
        assert "trainer is stuck: no microbatch has ended for" in lost
        assert [row.record["batch"] for row in reader.metrics.read("batch")] == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.cpu
def test_one_that_is_lost_again_and_again_ends_the_run_with_its_name_and_the_run_goes_on_when_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_job(tmp_path / "job", trainer__batches=3, trainer__placement="process")
    with monkeypatch.context() as patch:
        kill_at_step(patch, "trainer", [1, 2, 3, 4])
        assert main(["train", str(job), "--dir", str(tmp_path / "run"), "--plain"]) == 1
    assert "trainer/0" in capsys.readouterr().err
    with RunReader(tmp_path / "run") as reader:
        assert len([event for event in reader.events.read() if event.kind == "went_back"]) == 3
    assert main(["train", str(job), "--dir", str(tmp_path / "run"), "--plain", "--resume"]) == 0
    with RunReader(tmp_path / "run") as reader:
        assert reader.status().name == "finished"
        reader.counts().check()


def test_weights_leave_from_a_new_place_in_each_life_and_receivers_follow(tmp_path: Path) -> None:
    def publish(version: Version, value: float) -> tuple[str, str]:
        publisher = open_transport("shm", of_this_life("shm", tmp_path))
        publisher.publish(version, [("w", torch.full((3,), value))])
        return publisher.transport, publisher.address

    places = [publish(Version(0, 7), 7.0)]
    receiver = Following(lambda: places[-1])
    assert receiver.latest() == Version(0, 7)
    places.append(publish(Version(1, 5), 5.0))
    assert receiver.latest() == Version(1, 5)
    manifest, tensors = receiver.receive()
    assert manifest.version == Version(1, 5)
    assert tensors["w"].tolist() == [5.0, 5.0, 5.0]
    assert [path.name for path in tmp_path.iterdir()] == ["1"], "what the life before left is gone"


def test_check_tells_who_has_a_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    apart = {"trainer__placement": "process", "critic__placement": "process"}
    job = make_job(tmp_path / "job", algorithm__recipe="ppo", **apart)
    assert main(["check", str(job)]) == 0
    out = capsys.readouterr().out
    assert f"weights by {BETWEEN_PROCESSES}" in out
    roles = out.partition("roles ")[2]
    own = {line.split()[0] for line in roles.splitlines() if "process of its own" in line}
    assert own == {"actor", "critic.value", "critic.update"}
