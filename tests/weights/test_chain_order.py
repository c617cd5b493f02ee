"""In which order relays are in a chain: each machine is reached once."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.weights.relay.chain_order import chain_order

MACHINES = st.sampled_from("ABCD")


def test_the_sources_machine_comes_first_then_machine_after_machine() -> None:
    hosts = {1: "B", 2: "A", 3: "B", 4: "C", 5: "A", 6: "C"}
    assert chain_order([1, 2, 3, 4, 5, 6], hosts, "A") == [2, 5, 1, 3, 4, 6]
    assert chain_order([6, 3, 1], hosts, "A") == [6, 3, 1]
    assert chain_order([], {}, "A") == []


@given(found=st.dictionaries(st.integers(1, 30), MACHINES), source=MACHINES, data=st.data())
def test_a_version_crosses_the_network_once_for_each_other_machine(
    found: dict[int, str], source: str, data: st.DataObject
) -> None:
    ranks = data.draw(st.permutations([*found]))
    order = chain_order(ranks, found, source)
    assert sorted(order) == sorted(ranks)
    machines = [source, *(found[rank] for rank in order)]
    hops = sum(one != next_one for one, next_one in pairwise(machines))
    assert hops == len({*found.values()} - {source})
    for machine in {*found.values()}:
        assert [rank for rank in order if found[rank] == machine] == [rank for rank in ranks if found[rank] == machine]
