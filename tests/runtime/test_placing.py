"""Which node and device each worker is on, worked out by hand; and that nothing is given twice."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.placing import Bundle, Claim, Node, NoRoom, Placed, Team, Teams, numbered, placed


def team(role: str, count: int, devices: float = 0.0, cpus: float = 1.0, *, spread: bool = False) -> Team:
    return Team(tuple(Bundle((Claim(f"{role}/{number}", devices, cpus),)) for number in range(count)), spread)


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


def test_who_comes_later_has_no_number_of_a_device_that_others_have() -> None:
    """Of a node it is told how much is free, not of which device: as if of the first ones."""

    def on(node: str, worker: str, devices: float, *numbers: int) -> Placed:
        return Placed(Bundle((Claim(worker, devices),)), node, numbers)

    kept = [on("a", "trainer/0", 2, 0, 2), on("a", "engine/0", 0.5, 3), on("b", "engine/1", 1, 0)]
    come = [
        on("a", "engine/2", 0.5, 0),
        on("a", "engine/3", 0.5, 3),
        on("a", "engine/4", 1, 0),
        on("b", "critic/0", 2, 0, 1),
        on("b", "rollout/0", 0),
    ]
    assert where(numbered(come, kept)) == {
        "engine/2": ("a", (3,)),  # which has the part free, and nothing more
        "engine/3": ("a", (1,)),
        "engine/4": ("a", (4,)),
        "critic/0": ("b", (1, 2)),
        "rollout/0": ("b", ()),
    }
    assert where(numbered(kept, [])) == where(kept)


def test_colocated_workers_are_on_the_same_device_and_count_as_its_shares() -> None:
    both = Bundle((Claim("trainer/0", 1, 2), Claim("reference/0", 1, 1), Claim("functions/0", 0, 1)))
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


def test_a_shortage_tells_what_is_left_in_parts_of_devices() -> None:
    with pytest.raises(NoRoom) as shortage:
        placed([team("engine", 2, 0.7), team("reward", 1, 0.5)], [A, node("c", 3, 0.5)])
    told = str(shortage.value)
    assert "no node has room for reward/0, which ask for 0.5 GPU and 1 CPU" in told
    assert "a 2 GPU and 8 CPU, of which 0.6 (0.3 + 0.3) and 6 are left; c 3 GPU and 0.5 CPU, of which 3 and 0.5" in told


def test_one_that_comes_later_is_as_the_others_of_its_kind() -> None:
    teams = Teams((team("engine", 1, 1),), {"engine": team("engine", 1, 1)})
    more = teams.team_of("engine/7")
    assert more is not None
    assert more.bundles == (Bundle((Claim("engine/7", 1, 1),)),)
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


def test_what_is_together_is_placed_by_what_it_needs_together() -> None:
    trainer, critic = team("trainer", 2, 1), team("critic", 3, 1)
    found = where(placed([trainer, critic], [node("a", 3, here=True), B], together=("trainer", "critic")))
    assert {worker: there for worker, (there, _) in found.items()} == {
        **{f"critic/{number}": "a" for number in range(3)},
        **{f"trainer/{number}": "b" for number in range(2)},
    }


def test_another_place_is_tried_where_the_best_leaves_no_room_for_the_rest() -> None:
    """The engine, of two devices, would go to a, where the processors are that the trainer needs."""
    there = [node("a", 3, 8, here=True), node("b", 2, 4)]
    found = where(placed([team("engine", 1, 2, 4), team("trainer", 1, 1, 8)], there))
    assert {worker: each for worker, (each, _) in found.items()} == {"engine/0": "b", "trainer/0": "a"}


def test_ranks_that_have_room_on_several_nodes_alone_are_there() -> None:
    """They may be one machine."""
    found = where(placed([team("trainer", 4, 1)], [A, B], together=("trainer",)))
    assert sorted(there for there, _ in found.values()) == ["a", "a", "b", "b"]


_FEW = st.lists(
    st.tuples(st.integers(1, 2), st.sampled_from([0.0, 0.3, 0.5, 0.7, 1.0, 2.0]), st.sampled_from([1.0, 2.0, 3.0]),
              st.booleans()),
    min_size=1, max_size=3,
)  # fmt: skip


@given(_FEW, st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=3))
def test_whatever_has_room_is_placed(
    wanted: list[tuple[int, float, float, bool]], there: list[tuple[int, int]]
) -> None:
    teams = [team(f"r{n}", count, devices, cpus) for n, (count, devices, cpus, _) in enumerate(wanted)]
    together = [f"r{n}" for n, (*_, joint) in enumerate(wanted) if joint]
    nodes = [node(str(number), devices, cpus) for number, (devices, cpus) in enumerate(there)]
    bundles = [(each, f"r{n}") for n, one in enumerate(teams) for each in one.bundles]
    free = [(float(cpus), (1.0,) * devices) for devices, cpus in there]
    if has_room(bundles, free, {}, together):
        found = where(placed(teams, nodes, together=together))
        for role in together:
            assert len({each for worker, (each, _) in found.items() if worker.startswith(role)}) == 1
    elif has_room(bundles, free, {}, []):
        placed(teams, nodes, together=together)
    else:
        with pytest.raises(NoRoom):
            placed(teams, nodes, together=together)


def has_room(
    bundles: list[tuple[Bundle, str]],
    free: list[tuple[float, tuple[float, ...]]],
    homes: dict[str, int],
    together: list[str],
) -> bool:
    """Every place of every bundle, one after another."""
    if not bundles:
        return True
    (bundle, role), *rest = bundles
    part, count = min(bundle.devices, 1.0), max(1, int(bundle.devices)) if bundle.devices else 0
    for number, (cpus, devices) in enumerate(free):
        if cpus < bundle.cpus or (role in together and homes.get(role, number) != number):
            continue
        for chosen in combinations(range(len(devices)), count):
            if all(devices[each] + 1e-6 >= part for each in chosen):
                left = tuple(each - part * (place in chosen) for place, each in enumerate(devices))
                after = [*free[:number], (cpus - bundle.cpus, left), *free[number + 1 :]]
                if has_room(rest, after, {**homes, role: number}, together):
                    return True
    return False
