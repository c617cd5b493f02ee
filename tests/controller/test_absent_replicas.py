"""A replica for which no node has room: the others go on without it, and take it in once one has."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from rank_runs import CRITIC, kill_ranks, trained

from headrace.controller import replica_return
from headrace.runtime.local.worker_group import WorkerGroup
from headrace.runtime.placing import NoRoom, longest_for_room
from headrace.runtime.workers import WorkerLost
from headrace.store import RunReader
from headrace.training.rank_workers import RankWorkers

pytestmark = [pytest.mark.slow, pytest.mark.cpu]
LASTING = {
    "trainer__batches": 6,
    "trainer__optimizer": {"lr": 1e-3},
    "trainer__max_tokens_per_microbatch": 24,
    "runtime__restarts": {"most": 9},
}
PPO = {**LASTING, **CRITIC, "critic__layout": "d2", "critic__optimizer": {"lr": 1e-3}}


def short_of_room(monkeypatch: pytest.MonkeyPatch, tries: int) -> list[int]:
    """For ranks that are made anew, so many times. Gives who was to be, as it goes on."""
    restart, tried = WorkerGroup.restart, list[int]()

    async def restarted(group: WorkerGroup[Any], rank: int) -> None:
        worker = group.handles[rank].worker
        if worker.startswith("trainer/") and longest_for_room() == 10:  # it has others beside it
            tried.append(rank)
            if len(tried) <= tries:
                await group.kill(rank, "its node is lost")
                raise WorkerLost(rank, "no node has 1 GPU", worker=worker) from NoRoom("no node has 1 GPU")
        await restart(group, rank)

    monkeypatch.setattr(WorkerGroup, "restart", restarted)
    monkeypatch.setattr(replica_return, "_AGAIN_S", 0.1)
    return tried


async def made(ranks: RankWorkers) -> None:
    end = asyncio.get_running_loop().time() + 60
    while not ranks.absent._made:
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.05)


def wait_before_the_step(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Of this number the trainer's ranks wait until one that was absent is made again."""
    outcomes, seen = RankWorkers._outcomes, list[None]()

    async def waits(ranks: RankWorkers, method: str, *args: Any) -> Any:
        if method == "step" and "trainer/0" in ranks.names:
            seen.append(None)
            if len(seen) == steps:
                await made(ranks)
        return await outcomes(ranks, method, *args)

    monkeypatch.setattr(RankWorkers, "_outcomes", waits)


def told(folder: Path) -> tuple[list[str], list[tuple[int, int]]]:
    """What the record says of healings; and of each batch the branch and its number."""
    with RunReader(folder / "run") as reader:
        events = [*reader.events.read()]
        assert "went_back" not in {event.kind for event in events}
        healed = [event.data["message"] for event in events if event.kind == "trainer_healed"]
        return healed, [(row.branch, row.record["batch"]) for row in reader.metrics.read("batch")]


@pytest.mark.parametrize(
    ("layout", "dies", "of", "changes"),
    [
        ({"dp": 2}, 1, ("add_up", 2), LASTING),
        ({"dp": 2}, 0, ("hold", 2), PPO),  # neither model has stepped
        pytest.param({"dp": 3}, 0, ("add_up", 2), LASTING, marks=pytest.mark.soak),
        pytest.param({"dp": 2, "replicas": 2, "tp": 2}, 1, ("add_up", 2), LASTING, marks=pytest.mark.soak),
    ],
    ids=["the second", "the first, whose versions leave", "of three", "of ranks"],
)
def test_the_others_go_on_without_it_and_take_it_in_once_there_is_room(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layout: dict[str, int],
    dies: int,
    of: tuple[str, int],
    changes: dict[str, Any],
) -> None:
    """Each batch is trained once, and as by all; what engines serve is what is trained."""
    whole, weights = trained(tmp_path / "whole", layout, **changes)
    tried = short_of_room(monkeypatch, tries=4)
    wait_before_the_step(monkeypatch, 4)
    kill_ranks(monkeypatch, {of: dies})
    records, found = trained(tmp_path / "short", layout, **changes)
    assert len(tried) > 4
    assert [record["reward_mean"] for record in records] == [record["reward_mean"] for record in whole]
    assert all(float((weights[name] - tensor).abs().max()) < 1e-4 for name, tensor in found.items())
    healed, batches = told(tmp_path / "short")
    assert batches == [(0, batch) for batch in range(6)]
    without, again = healed
    assert without.startswith("the others go on without trainer/")
    assert f"trainer/{dies}" in without.partition(", until")[0]
    assert without.endswith(" is lost: no node has 1 GPU")
    assert f"trainer/{dies}" in again.partition(" made anew, with the state of another replica")[0]


def test_a_run_ends_without_it_where_there_is_no_room_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is resumed with all."""
    short_of_room(monkeypatch, tries=10**6)
    kill_ranks(monkeypatch, {("add_up", 1): 0})
    trained(tmp_path, {"dp": 2}, **LASTING)
    assert [message.partition(",")[0] for message in told(tmp_path)[0]] == ["the others go on without trainer/0"]
    monkeypatch.undo()
    records, _ = trained(tmp_path, {"dp": 2}, "--resume", **{**LASTING, "trainer__batches": 8})
    assert [record["batch"] for record in records] == [*range(8)]


def test_the_last_one_that_is_left_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one is lost as well: all are made anew, and go back to the last commit."""
    short_of_room(monkeypatch, tries=10**6)
    kill_ranks(monkeypatch, {("add_up", 1): 0, ("add_up", 4): 1})
    trained(tmp_path, {"dp": 2}, **LASTING, checkpoint__every=2)
    with RunReader(tmp_path / "run") as reader:
        kinds = [event.kind for event in reader.events.read()]
    assert (kinds.count("trainer_healed"), kinds.count("went_back")) == (1, 1)
