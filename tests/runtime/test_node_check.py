"""What a node has to have, looked at and judged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.runtime.node_check import (
    Asked,
    NeededFile,
    NeededModule,
    Needs,
    NodeReport,
    NodeUnfit,
    SharedNeeds,
    Taken,
    look,
    require,
    require_met,
    require_shared,
    require_stores,
    require_together,
    versions,
)


def test_a_node_that_has_all_is_fit(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("one")
    needed = NeededFile.of(tmp_path / "code.py", "reward.function", "share it")
    require("n", NodeReport.parse(look(Asked([needed.path])).text()), Needs((needed,)), ["rollout/0"])


@pytest.mark.parametrize(("there", "how"), [(None, "has no"), ("another", "has another")])
def test_a_file_that_only_the_driver_s_disk_has_is_told(tmp_path: Path, there: str | None, how: str) -> None:
    path = tmp_path / "code.py"
    path.write_text("one")
    needed = NeededFile.of(path, "rollout.environment", "put it on a file system that all nodes share")
    path.unlink()
    if there is not None:
        path.write_text(there)
    seen = replace(look(Asked([needed.path])), host="far")
    with pytest.raises(NodeUnfit) as unfit:
        require("10.0.0.7 (ab)", seen, Needs((needed,)), ["rollout/0", "rollout/1"])
    assert str(unfit.value) == (
        f"the node 10.0.0.7 (ab) on far {how} {path} (rollout.environment), which rollout/0, rollout/1 there need; put "
        "it on a file system that all nodes share"
    )


@pytest.mark.parametrize("name", ["Headrace", "Python", "torch"])
def test_another_version_is_told(name: str) -> None:
    seen = replace(look(Asked()), host="far", versions={**versions(), name: "0.0"})
    with pytest.raises(NodeUnfit, match=rf"the node n on far has {name} 0\.0, and the controller .+; install the same"):
        require("n", seen, Needs(), [])


def test_ranks_of_one_model_are_on_one_machine() -> None:
    require_together({"trainer/0": "x", "trainer/1": "x"}, "weights.host")
    with pytest.raises(NodeUnfit, match="trainer/0, trainer/1 are on several machines, and ranks of one model meet on"):
        require_together({"trainer/0": "x", "trainer/1": "y"}, "weights.host")


def test_those_who_meet_on_loopback_are_where_the_trainer_is() -> None:
    require_met({"trainer/0": "x", "engine/0": "x"}, "x")
    with pytest.raises(NodeUnfit, match=r"^engine/1 would be on another machine than the trainer, .+ weights.host"):
        require_met({"engine/0": "x", "engine/1": "y"}, "x")
    with pytest.raises(NodeUnfit):
        require_met({"engine/0": ""}, "")  # nobody knows


def test_a_module_that_only_the_driver_s_disk_has_is_told(tmp_path: Path) -> None:
    """By name, without importing it or the package that it is in."""
    (tmp_path / "own_rewards").mkdir()
    for name in ("__init__", "score"):
        (tmp_path / "own_rewards" / f"{name}.py").write_text("raise SystemExit")
    names = ["own_rewards.score", "own_rewards.nothing", "json.decoder", "not_there"]
    assert look(Asked(modules=names, search=[str(tmp_path)])).modules == ["own_rewards.score", "json.decoder"]
    needs = Needs(modules=(NeededModule("own_rewards.score", "reward.function", "install it there"),))
    require("n", look(Asked(modules=names, search=[str(tmp_path)])), needs, ["rollout/0"])
    asked = Asked.parse(Asked(modules=names).text())
    with pytest.raises(NodeUnfit) as unfit:
        require(
            "10.0.0.7 (ab)",
            replace(NodeReport.parse(look(asked).text()), host="far"),
            needs,
            ["rollout/0", "rollout/1"],
        )
    assert str(unfit.value) == (
        "the node 10.0.0.7 (ab) on far finds no module own_rewards.score (reward.function), which rollout/0, rollout/1 "
        "there need; install it there"
    )


def test_shared_memory_is_needed_where_the_trainer_is_and_by_each_relay() -> None:
    memory = {"own": "A", "a": "B", "a2": "B", "c": "C"}
    there = {"a": ["trainer/0", "engine/0"], "a2": ["engine/1"], "c": ["engine/2", "engine/3", "rollout/0"]}
    shared = SharedNeeds(10, ("engine", "proximal"), unplaced=("proximal/0", "functions/0"))
    assert shared.on_nodes(there, memory, "own") == {"a": Taken(10), "c": Taken(20), "own": Taken(10)}
    each = SharedNeeds(10, ("engine",), each=True)
    assert each.on_nodes(there, memory, "own") == {"a": Taken(20), "a2": Taken(10), "c": Taken(20)}
    here = SharedNeeds(10, ("engine",), unplaced=("trainer/0",))
    assert here.on_nodes({"c": ["engine/0"]}, memory, "own") == {"own": Taken(10), "c": Taken(10)}


def test_samples_are_where_the_command_is_or_in_the_stores_of_those_that_play() -> None:
    memory = {"own": "A", "a": "A", "b": "A"}
    there = {"a": ["trainer/0", "rollout/0"], "b": ["rollout/1", "rollout/2"]}
    needs = SharedNeeds(10, columns=7)
    assert needs.on_nodes(there, memory, "own", near=True) == {"own": Taken(columns=7), "a": Taken(10)}
    assert needs.on_nodes(there, memory, "own") == {"a": Taken(10)}
    assert needs.in_stores(there, "own") == {"a": 3, "b": 5}
    one_here = SharedNeeds(0, unplaced=("rollout/3",), columns=8)
    assert one_here.on_nodes(there, memory, "own", near=True) == {"own": Taken(columns=8)}
    assert one_here.in_stores(there, "own") == {"a": 2, "b": 4, "own": 2}
    small = SharedNeeds(0, columns=8, in_files=False)
    assert small.on_nodes(there, memory, "own", near=True) == {}
    assert small.in_stores(there, "own") == {"a": 3, "b": 6}
    assert SharedNeeds(10).in_stores(there, "own") == {}
    at_home = SharedNeeds(10, unplaced=("trainer/0",), columns=7).on_nodes(
        {"b": ["rollout/1"]}, memory, "own", near=True
    )
    assert at_home == {"own": Taken(10, 7)}


def test_an_object_store_that_is_too_small_is_told() -> None:
    stores, names, hosts = {"a": 3 << 30}, {"a": "10.0.0.7 (a)"}, {"a": "far"}
    require_stores(names, hosts, stores, {"a": 3 << 30})
    with pytest.raises(NodeUnfit) as unfit:
        require_stores(names, hosts, stores, {"a": 4 << 30})
    assert str(unfit.value).startswith(
        "samples of a batch take up to 4.00 GiB of the object store of the node 10.0.0.7 (a) on far, which has 3.00 "
        "GiB; start Ray there with more (ray start --object-store-memory=8589934592;"
    )


def test_the_node_that_has_too_little_shared_memory_is_told() -> None:
    def has(memory: str, free: int) -> NodeReport:
        return replace(look(Asked()), host="far", memory=memory, place="/dev/shm", free=free << 30, used=1 << 30)

    seen = {"a": has("A", 9), "b1": has("B", 5), "b2": has("B", 5)}
    names = {node: f"10.0.0.7 ({node})" for node in seen}
    three = Taken(3 << 30)
    require_shared(names, seen, {"a": Taken(9 << 30), "b1": three, "b2": Taken(2 << 30)})
    with pytest.raises(NodeUnfit) as unfit:
        require_shared(names, seen, {"a": Taken(1 << 30), "b1": three, "b2": three})
    more = "have 8 GiB there (mount -o remount,size=8G /dev/shm, or a container's --shm-size=8g)"
    assert str(unfit.value) == (
        "new weights, two versions of them where the trainer is and two for each relay, take 6.00 GiB of /dev/shm on "
        f"the node 10.0.0.7 (b1) on far, where 5.00 GiB are free; {more}, or use weights.transport: disk"
    )
    assert look(Asked()).free > 0


def test_only_what_takes_memory_is_to_take_less() -> None:
    batches = "lower rollout.prompts_per_batch, rollout.samples_per_prompt or engine.max_context"
    assert Taken(1).mends() == ["use weights.transport: disk"]
    assert Taken(columns=1).mends() == [batches, "set rollout.workers to 0"]
    assert (Taken(1) + Taken(columns=2)).mends() == [*Taken(1).mends(), *Taken(columns=2).mends()]
    assert Taken(columns=1).told() == "the samples of a batch, where the command is,"
    assert Taken(1, 1).told().endswith("for each relay, and the samples of a batch, where the command is,")
