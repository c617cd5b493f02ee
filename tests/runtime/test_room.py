"""Which nodes workers go to when theirs are lost: on a cluster that is a table, in virtual time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from headrace.cli.main import main
from headrace.runtime.asked_of_nodes import AskedOfNodes
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.node_check import Asked, NodeUnfit, look
from headrace.runtime.placing import Bundle, Claim, Node, NoRoom, Team, Teams, kind_of, room_within
from headrace.runtime.virtual import VirtualRuntime, run_virtually

if TYPE_CHECKING:
    from headrace.runtime.ray.reservations import Reservations

pytestmark = pytest.mark.usefixtures("ray_imported")


@dataclass
class Group:
    cluster: Cluster
    node: str
    cpus: float

    def wait(self, seconds: float) -> bool:
        return self.cluster.free(self.node) >= 0 and self.node not in self.cluster.in_parts


@dataclass
class Cluster:
    """`machines`: of each node that is up; of its processors each has four, unless `cpus` tells."""

    machines: dict[str, str]
    cpus: dict[str, float] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    looks: list[str] = field(default_factory=list)
    """At which nodes."""
    runtime: VirtualRuntime | None = None
    slow: tuple[str, float] = ("", 0.0)
    """A node, and for how many seconds it does not answer a scout."""
    unfit_for: dict[tuple[str, str], str] = field(default_factory=dict)
    """By node and kind, in which words."""
    in_parts: set[str] = field(default_factory=set)
    """Nodes that have as much as they tell, but not in one piece."""

    def free(self, node: str) -> float:
        taken = sum(each.cpus for each in self.groups if each.node == node)
        return (self.cpus.get(node, 4.0) if node in self.machines else -1.0) - taken

    def here(self) -> str:
        return "own"

    def living(self) -> Mapping[str, str]:
        return {node: node for node in self.machines}

    def nodes(self, device: str) -> list[Node]:
        return [Node(node, node, self.free(node), ()) for node in self.machines]

    def group(
        self, bundles: Sequence[Mapping[str, float]], bundle_label_selector: Sequence[Mapping[str, str]]
    ) -> Group:
        made = Group(self, next(iter(bundle_label_selector[0].values())), bundles[0]["CPU"])
        self.groups.append(made)
        return made

    def require(self, workers: Mapping[str, Sequence[str]]) -> Mapping[str, str]:
        for node, there in workers.items():
            self.looks.append(node)
            if self.runtime is not None and node == self.slow[0]:
                self.runtime.charge(self.slow[1])
            for worker in there:
                if words := self.unfit_for.get((node, kind_of(worker))):
                    raise NodeUnfit(words)
        return {node: self.machines[node] for node in workers}


Reserve = Callable[..., "Reservations"]


@pytest.fixture
def reserved(monkeypatch: pytest.MonkeyPatch) -> Reserve:
    """What a run has of a cluster, once it has begun."""
    from headrace.runtime.ray import reservations

    def made(cluster: Cluster, *teams: Team, room_s: float = 3.0) -> Reservations:
        monkeypatch.setattr(reservations, "nodes", cluster)
        monkeypatch.setattr(reservations, "placement_group", cluster.group)
        monkeypatch.setattr(reservations, "remove_placement_group", cluster.groups.remove)
        monkeypatch.setattr(reservations.Reservations, "_options", lambda self, worker, reserved: reserved.node)
        found = reservations.Reservations(Teams(teams), room_s, cluster.require, ("trainer", "critic"))
        found.begin()
        return found

    return made


def team(*bundles: Sequence[str], cpus: float = 1.0) -> Team:
    return Team(tuple(Bundle(tuple(Claim(worker, 0.0, cpus) for worker in each)) for each in bundles))


def ranks(count: int, cpus: float = 1.0, kind: str = "trainer") -> Team:
    return team(*([f"{kind}/{number}"] for number in range(count)), cpus=cpus)


async def where(reservations: Reservations, runtime: VirtualRuntime, *workers: str) -> list[Any]:
    """All asked at the same time."""
    return await asyncio.gather(*(reservations.options(worker, runtime) for worker in workers))


def test_ranks_of_a_lost_machine_go_to_one_other_together(reserved: Reserve) -> None:
    cluster = Cluster({"a": "A"}, {"a": 6})
    reservations = reserved(cluster, ranks(2), team(["engine/0"], cpus=4))
    cluster.machines = {"b": "B", "c": "C", "c2": "C", "d": "D"}
    cluster.cpus = {"b": 1, "c": 1, "c2": 1}

    async def main(runtime: VirtualRuntime) -> None:
        assert await where(reservations, runtime, "engine/0") == ["d"]  # whatever the ranks have
        assert await where(reservations, runtime, "trainer/0", "trainer/1") == ["c", "c2"]  # b has room for one alone
        assert sorted(each.node for each in cluster.groups) == ["c", "c2", "d"]

    run_virtually(main)


@pytest.mark.parametrize("asked", [("trainer/0", "trainer/1"), ("trainer/1", "trainer/0")])
def test_a_rank_goes_where_the_others_are(reserved: Reserve, asked: tuple[str, str]) -> None:
    cluster = Cluster({"a1": "A", "a2": "A"}, {"a1": 1, "a2": 1, "a3": 1})
    reservations = reserved(cluster, ranks(2))
    del cluster.machines["a1"]
    cluster.machines |= {"a3": "A"}

    async def main(runtime: VirtualRuntime) -> None:
        found = dict(zip(asked, await where(reservations, runtime, *asked), strict=True))
        assert found == {"trainer/0": "a3", "trainer/1": "a2"}

    run_virtually(main)


@pytest.mark.parametrize("asked", [("trainer/0", "trainer/1"), ("trainer/1", "trainer/0")])
def test_where_they_are_there_is_no_room_and_all_go_elsewhere(reserved: Reserve, asked: tuple[str, str]) -> None:
    cluster = Cluster({"a1": "A", "a2": "A"}, {"a1": 1, "a2": 1})
    reservations = reserved(cluster, ranks(2))
    del cluster.machines["a1"]
    cluster.machines |= {"b": "B"}

    async def main(runtime: VirtualRuntime) -> None:
        assert await where(reservations, runtime, *asked) == ["b", "b"]
        assert [each.node for each in cluster.groups] == ["b", "b"]  # nothing is left of what they had

    run_virtually(main)


def test_one_beside_which_others_go_on_waits_less_and_takes_nobodys_room(reserved: Reserve) -> None:
    cluster = Cluster({"a1": "A", "a2": "A"}, {"a1": 1, "a2": 1})
    reservations = reserved(cluster, ranks(2), room_s=300.0)
    del cluster.machines["a1"]
    cluster.machines |= {"b": "B"}  # with room for both

    async def main(runtime: VirtualRuntime) -> None:
        with room_within(10.0), pytest.raises(NoRoom, match="trainer/0 has waited 10 s for room: no machine has room"):
            await reservations.options("trainer/0", runtime)
        assert runtime.clock.now() == 10.0
        assert [each.node for each in cluster.groups] == ["a2"]
        cluster.machines |= {"a1": "A"}
        with room_within(10.0):
            assert await reservations.options("trainer/0", runtime) == "a1"
        assert [each.node for each in cluster.groups] == ["a2", "a1"]

    run_virtually(main)


def test_whoever_is_colocated_with_a_rank_that_lives_stays(reserved: Reserve) -> None:
    cluster = Cluster({"a1": "A", "a2": "A"}, {"a1": 2, "a2": 2})
    reservations = reserved(cluster, team(["trainer/0", "engine/0"], ["trainer/1", "engine/1"]))
    del cluster.machines["a1"]
    cluster.machines |= {"b": "B"}

    async def main(runtime: VirtualRuntime) -> None:
        waiting = asyncio.ensure_future(reservations.options("trainer/0", runtime))
        await runtime.clock.sleep(0.5)
        assert await reservations.options("engine/1", runtime) == "a2"
        assert runtime.clock.now() == 0.5
        with pytest.raises(NoRoom, match=r"trainer/0 has waited 3 s for room .+: no machine has room for all of"):
            await waiting
        assert [each.node for each in cluster.groups] == ["a2"]
        cluster.machines |= {"a3": "A"}
        asked = ("engine/0", "trainer/0", "trainer/1", "engine/1")
        assert await where(reservations, runtime, *asked) == ["a3", "a3", "a2", "a2"]  # an engine takes its rank along

    run_virtually(main)


def test_a_node_is_unfit_for_a_kind_of_workers_and_for_a_while(reserved: Reserve) -> None:
    cluster = Cluster({"a": "A"}, unfit_for={("b", "trainer"): "b has no code.py"})
    reservations = reserved(cluster, ranks(1), team(["engine/0"]), room_s=40.0)
    cluster.machines = {"b": "B"}
    cluster.looks.clear()

    async def main(runtime: VirtualRuntime) -> None:
        waiting = asyncio.ensure_future(reservations.options("trainer/0", runtime))
        await runtime.clock.sleep(0.5)
        assert await reservations.options("engine/0", runtime) == "b"
        with pytest.raises(NoRoom, match=r"The cluster has free: no node\..+Nodes that are unfit: b has no code\.py"):
            await waiting
        assert cluster.looks == ["b", "b", "b"]  # once for the engine; not at every turn for the trainer
        assert runtime.clock.now() == 40
        waiting = asyncio.ensure_future(reservations.options("trainer/0", runtime))
        await runtime.clock.sleep(5)
        cluster.unfit_for.clear()
        assert await waiting == "b"

    run_virtually(main)


def test_who_is_not_given_what_a_node_seemed_to_have_goes_to_another(reserved: Reserve) -> None:
    cluster = Cluster({"a": "A"})
    reservations = reserved(cluster, team(["engine/0"]))
    cluster.machines, cluster.in_parts = {"b": "B"}, {"b"}

    async def main(runtime: VirtualRuntime) -> None:
        with pytest.raises(
            NoRoom, match=r"unfit: the room for engine/0 on the node b was taken by somebody else, or it"
        ):
            await reservations.options("engine/0", runtime)
        cluster.machines |= {"c": "C"}
        assert await reservations.options("engine/0", runtime) == "c"
        assert [each.node for each in cluster.groups] == ["c"]

    run_virtually(main)


def test_nobody_who_has_room_waits_for_one_that_looks_for_it(reserved: Reserve) -> None:
    cluster = Cluster({"a": "A", "b": "B"}, {"a": 1, "b": 1}, slow=("c", 120.0))
    reservations = reserved(cluster, team(["engine/0"], ["engine/1"]))
    del cluster.machines["b"]
    cluster.machines |= {"c": "C"}

    async def main(runtime: VirtualRuntime) -> None:
        cluster.runtime = runtime
        looking = asyncio.ensure_future(reservations.options("engine/1", runtime))
        await runtime.clock.sleep(1)
        assert await reservations.options("engine/0", runtime) == "a"
        assert runtime.clock.now() == 1
        assert await looking == "c"
        assert runtime.clock.now() == 120

    run_virtually(main)


def test_all_that_wait_for_room_do_so_at_once(reserved: Reserve) -> None:
    cluster = Cluster({"a": "A", "b": "B"}, {"a": 1, "b": 2})
    reservations = reserved(cluster, team(["engine/0"], ["engine/1"], ["engine/2"]))
    del cluster.machines["b"]

    async def main(runtime: VirtualRuntime) -> None:
        asked = (reservations.options(f"engine/{number}", runtime) for number in range(3))
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert [isinstance(end, NoRoom) for end in ends].count(True) == 2
        assert "a" in ends
        assert runtime.clock.now() == 3

    run_virtually(main)


def test_no_room_stays_with_a_run_that_ends_while_it_takes_some(reserved: Reserve) -> None:
    begun, let = threading.Event(), threading.Event()

    class Slow(Cluster):
        def group(self, *asked: Any, **options: Any) -> Group:
            if self.looks:
                begun.set()
                assert let.wait(10)
            return super().group(*asked, **options)

    cluster = Slow({"a": "A"})
    reservations = reserved(cluster, team(["engine/0"]), room_s=0.1)
    cluster.machines = {"b": "B"}

    async def main() -> None:
        runtime = InlineRuntime()
        taking = asyncio.ensure_future(reservations.options("engine/0", runtime))
        await asyncio.to_thread(begun.wait, 10)
        closing = asyncio.ensure_future(asyncio.to_thread(reservations.close))
        await asyncio.wait([closing], timeout=0.1)
        let.set()
        await asyncio.wait([taking, closing])
        with pytest.raises(NoRoom, match="the run has given its room back"):
            await reservations.options("engine/0", runtime)
        await runtime.close()

    asyncio.run(main())
    assert cluster.groups == []


def test_a_node_that_goes_while_it_is_chosen_is_unfit(
    reserved: Reserve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.runtime.ray import scouts

    cluster = Cluster({"a": "A"})
    reservations = reserved(cluster, team(["engine/0"]))
    (tmp_path / "memory").write_text("m")
    inspection = scouts.Inspection(AskedOfNodes(together=("trainer",)), tmp_path / "memory")
    monkeypatch.setattr(reservations, "_require", inspection.require)
    monkeypatch.setattr(
        scouts, "seen", lambda paths, names: {node: replace(look(Asked()), loopback="C") for node in paths}
    )
    monkeypatch.setattr(scouts, "nodes", SimpleNamespace(here=lambda: "own", living=lambda: {"own": "own", "c": "c"}))
    with pytest.raises(NodeUnfit, match="the node b does not answer, and is to have engine/0, engine/1; look whether"):
        inspection.require({"b": ["engine/0", "engine/1"]})
    cluster.machines = {"b": "B", "c": "C"}

    async def main(runtime: VirtualRuntime) -> None:
        assert await reservations.options("engine/0", runtime) == "c"

    run_virtually(main)


def test_nodes_are_looked_at_for_those_that_are_to_be_there_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.runtime.ray import scouts

    (tmp_path / "memory").write_text("m")
    living = {node: node for node in ("own", "a", "b", "c")}
    monkeypatch.setattr(
        scouts, "seen", lambda paths, names: {node: replace(look(Asked()), loopback=node) for node in paths}
    )
    monkeypatch.setattr(scouts, "nodes", SimpleNamespace(here=lambda: "own", living=lambda: living))
    inspection = scouts.Inspection(AskedOfNodes(together=("trainer", "critic")), tmp_path / "memory")
    assert inspection.require({"a": ["trainer/0", "trainer/1"], "b": ["critic/0"]}) == {"a": "a", "b": "b"}
    assert inspection.require({"c": ["trainer/0"], "b": ["engine/0"]}) == {"c": "c", "b": "b"}  # trainer/1 is lost, too
    with pytest.raises(NodeUnfit, match="trainer/0, trainer/1 are on several machines"):
        inspection.require({"a": ["trainer/0"], "c": ["trainer/1"]})  # which were looked at before


def test_those_who_take_weights_stay_where_the_trainer_is_unless_weights_may_leave_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.runtime.ray import scouts

    (tmp_path / "memory").write_text("m")
    living = {node: node for node in ("own", "a1", "a2", "b")}
    monkeypatch.setattr(
        scouts, "seen", lambda paths, names: {node: replace(look(Asked()), loopback=node[0]) for node in paths}
    )
    monkeypatch.setattr(scouts, "nodes", SimpleNamespace(here=lambda: "own", living=lambda: living))

    def inspection(*meet: str) -> scouts.Inspection:
        return scouts.Inspection(AskedOfNodes(meet=meet), tmp_path / "memory")

    met = inspection("trainer", "engine")
    met.require({"a1": ["trainer/0"], "a2": ["engine/0"], "b": ["rollout/0"]})
    with pytest.raises(NodeUnfit, match=r"^engine/0 would be on another machine than the trainer"):
        met.require({"b": ["engine/0"]})  # its node was lost
    with pytest.raises(NodeUnfit, match=r"^engine/0 would be on another machine than the trainer"):
        inspection("trainer", "engine").require({"a1": ["engine/0"]})  # the trainer is with the controller
    inspection().require({"a1": ["trainer/0"], "b": ["engine/0"]})


def test_who_is_to_be_beside_a_worker_follows_it(reserved: Reserve, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.runtime.ray import reservations as made

    monkeypatch.setattr(made, "_on", lambda node: node)
    monkeypatch.setattr(made, "_here", lambda: "own")
    cluster = Cluster({"a": "A"})
    reservations = reserved(cluster, team(["engine/0"]))
    assert [reservations.beside(worker) for worker in ("engine/0", "trainer/0")] == ["a", "own"]
    cluster.machines = {"b": "B"}
    with pytest.raises(NoRoom, match="engine/0, which it is to be beside, has no place yet"):
        reservations.beside("engine/0")

    async def main(runtime: VirtualRuntime) -> None:
        await where(reservations, runtime, "engine/0")
        assert reservations.beside("engine/0") == "b"

    run_virtually(main)


def test_that_a_cluster_has_no_room_is_bad_input_and_that_none_answers_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from headrace.runtime.ray import joining

    class Closed(joining.Inspection):
        def __init__(self) -> None:
            self.together = ()

    def looked(address: str) -> int:
        joining.looked_at(address, Teams((ranks(2, cpus=5),)), Closed())
        return 0

    monkeypatch.setattr(joining, "nodes", Cluster({"a": "A"}))
    monkeypatch.setattr(joining.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(joining, "own_address", lambda: "127.0.0.1:6379")
    monkeypatch.setattr("headrace.cli.check.run", lambda args: looked("127.0.0.1:6379"))
    assert main(["check", "a.yaml"]) == 2
    monkeypatch.setattr(joining.ray, "is_initialized", lambda: False)
    monkeypatch.setattr("headrace.cli.check.run", lambda args: looked("127.0.0.1:1"))
    assert main(["check", "a.yaml"]) == 1
