"""Which node and device each worker is on, worked out by hand; and that nothing is given twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.placing import Bundle, Node, NoRoom, Placed, Seat, Team, Teams, placed


def team(role: str, count: int, devices: float = 0.0, cpus: float = 1.0, *, spread: bool = False) -> Team:
    return Team(tuple(Bundle((Seat(f"{role}/{number}", devices, cpus),)) for number in range(count)), spread)


def node(name: str, devices: int, cpus: float = 8.0, *, here: bool = False) -> Node:
    return Node(name, name, cpus, (1.0,) * devices, here)


A, B = node("a", 2, here=True), node("b", 2)


def where(found: list[Placed]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {worker: (each.node, each.devices) for each in found for worker in each.bundle.workers}


def test_packed_workers_fill_a_node_before_the_next() -> None:
    assert where(placed([team("engine", 3, 1)], [A, B])) == {
        "engine/0": ("a", (0,)),
        "engine/1": ("a", (1,)),
        "engine/2": ("b", (0,)),
    }


def test_packed_workers_go_where_more_of_them_fit() -> None:
    assert where(placed([team("trainer", 4, 1)], [A, node("c", 4)])) == {
        f"trainer/{number}": ("c", (number,)) for number in range(4)
    }


def test_spread_workers_go_to_as_many_nodes_as_can_be() -> None:
    found = where(placed([team("rollout", 4, spread=True)], [A, B]))
    assert [found[f"rollout/{number}"][0] for number in range(4)] == ["a", "b", "a", "b"]


def test_parts_share_a_device_and_no_part_is_on_two() -> None:
    found = where(placed([team("engine", 3, 0.6), team("reward", 1, 0.4)], [A, B]))
    assert found == {
        "engine/0": ("a", (0,)),
        "engine/1": ("a", (1,)),
        "engine/2": ("b", (0,)),  # 0.4 + 0.4 of a's are free, of two devices
        "reward/0": ("a", (0,)),
    }


def test_colocated_workers_are_on_the_same_device_and_count_as_its_shares() -> None:
    both = Bundle((Seat("trainer/0", 1, 2), Seat("reference/0", 1, 1), Seat("functions/0", 0, 1)))
    assert (both.devices, both.cpus) == (1, 4)
    assert [both.share(worker) for worker in both.workers] == [0.5, 0.5, 0]
    assert where(placed([Team((both,))], [A])) == dict.fromkeys(both.workers, ("a", (0,)))


def test_the_largest_is_placed_first() -> None:
    found = where(placed([team("reward", 2, 0.5), team("engine", 1, 2)], [A, node("c", 1)]))
    assert found["engine/0"] == ("a", (0, 1))
    assert found["reward/0"] == found["reward/1"] == ("c", (0,))


def test_of_those_that_ask_for_as_many_devices_the_one_with_more_processors_is_first() -> None:
    trainer, engine = team("trainer", 1, cpus=4), team("engine", 1, cpus=8)
    there = [node("a", 0, 8, here=True), node("b", 0, 4)]
    assert where(placed([trainer, engine], there)) == {"engine/0": ("a", ()), "trainer/0": ("b", ())}


def test_a_shortage_is_named() -> None:
    with pytest.raises(NoRoom) as shortage:
        placed([team("trainer", 2, 1), team("engine", 3, 1)], [A, B], "slot")
    told = str(shortage.value)
    assert "no node has room for engine/2, which ask for 1 slot and 1 CPU" in told
    assert "trainer 2 x (1 slot, 1 CPU); engine 3 x (1 slot, 1 CPU)" in told
    assert "a 2 slot and 8 CPU, of which 0 and 6 are left; b 2 slot and 8 CPU, of which 0 and 6 are left" in told
    assert "Lower devices or cpus in cluster.place, have fewer workers" in told


def test_one_that_comes_later_is_as_the_others_of_its_kind() -> None:
    teams = Teams((team("engine", 1, 1),), {"engine": team("engine", 1, 1)})
    more = teams.team_of("engine/7")
    assert more is not None
    assert more.bundles == (Bundle((Seat("engine/7", 1, 1),)),)
    assert teams.team_of("critic/0") is None


_TEAMS = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from([0.0, 0.25, 0.5, 0.7, 1.0, 2.0]), st.sampled_from([0.5, 1.0, 3.0]),
              st.booleans()),
    min_size=1, max_size=5,
)  # fmt: skip
_NODES = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 8)), min_size=1, max_size=4)


@given(_TEAMS, _NODES)
def test_no_device_and_no_processor_is_given_twice(
    wanted: list[tuple[int, float, float, bool]], there: list[tuple[int, int]]
) -> None:
    teams = [
        team(f"r{number}", count, devices, cpus, spread=spread)
        for number, (count, devices, cpus, spread) in enumerate(wanted)
    ]
    nodes = [node(str(number), devices, cpus) for number, (devices, cpus) in enumerate(there)]
    try:
        found = placed(teams, nodes)
    except NoRoom:
        return
    assert len(where(found)) == sum(count for count, *_ in wanted)
    for each in nodes:
        on = [one for one in found if one.node == each.id]
        assert sum(one.bundle.cpus for one in on) <= each.cpus + 1e-3
        for number in range(len(each.devices)):
            assert sum(min(one.bundle.devices, 1) for one in on if number in one.devices) <= 1 + 1e-3
        assert all(len(one.devices) == max(1, one.bundle.devices) * bool(one.bundle.devices) for one in on)


@given(_TEAMS, _NODES)
def test_the_same_is_always_placed_alike(
    wanted: list[tuple[int, float, float, bool]], there: list[tuple[int, int]]
) -> None:
    teams = [team(f"r{n}", count, devices, cpus, spread=s) for n, (count, devices, cpus, s) in enumerate(wanted)]
    nodes = [node(str(number), devices, cpus) for number, (devices, cpus) in enumerate(there)]

    def told() -> object:
        try:
            return where(placed(teams, nodes))
        except NoRoom as none:
            return str(none)

    assert told() == told()
