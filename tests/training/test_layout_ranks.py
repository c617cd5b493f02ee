"""Who is who among ranks: the tables that AReaL publishes, and what holds of all layouts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import TrainConfig
from headrace.controller.planning.placement import run_teams
from headrace.training.layouts.pipelined_model import bin_of
from headrace.training.layouts.ranks import Layout, Order, Place, grouping, layout_of, readers
from headrace.weights.seen import Seen

COUNTS = st.integers(1, 4)
LAYOUTS = st.builds(Layout, dp=COUNTS, tp=COUNTS, pp=COUNTS, cp=COUNTS)
IN_REPLICAS = st.builds(
    lambda replicas, each, zero, **more: Layout(dp=replicas * each, replicas=replicas, zero=zero, **more),
    *(COUNTS, COUNTS, st.sampled_from([2, 3])),
    tp=COUNTS,
    pp=COUNTS,
    cp=COUNTS,
)


def test_in_training_the_order_is_pipeline_data_tensor() -> None:
    """8 ranks, d2t2p2: rank = pp (dp tp) + dp tp + tp."""
    layout = Layout(dp=2, tp=2, pp=2)
    found = [(at.pp, at.dp, at.tp) for _, at in layout.places()]
    assert found == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (1, 1, 0), (1, 1, 1)]


def test_in_inference_data_comes_first() -> None:
    layout = Layout(dp=2, tp=2, pp=2)
    found = [layout.place(rank, "inference") for rank in range(8)]
    assert [(at.dp, at.pp, at.tp) for at in found] == [
        (0, 0, 0),
        (0, 0, 1),
        (0, 1, 0),
        (0, 1, 1),
        (1, 0, 0),
        (1, 0, 1),
        (1, 1, 0),
        (1, 1, 1),
    ]


@pytest.mark.parametrize(
    ("layout", "heads"),
    [
        (Layout(dp=2), (0, 1)),
        (Layout(dp=2, tp=2), (0, 2)),
        (Layout(dp=2, tp=2, pp=2), (4, 6)),
        (Layout(dp=2, cp=2), (0, 2)),
    ],
    ids=["d2", "d2t2", "d2t2p2", "d2c2"],
)
def test_each_part_of_the_data_goes_to_its_head(layout: Layout, heads: tuple[int, ...]) -> None:
    """Of the last stage the first tensor rank."""
    assert layout.heads == heads


def seen(machines: str) -> list[Seen]:
    """A rank on each; "?" tells nobody where it is."""
    return [Seen("" if name == "?" else name, "1", number, "cpu") for number, name in enumerate(machines)]


@pytest.mark.parametrize(
    ("layout", "machines", "reading"),
    [
        (Layout(pp=2), "aa", [1, 1]),  # the head is of the last stage
        (Layout(pp=2), "ab", [0, 1]),
        (Layout(pp=2), "??", [0, 1]),
        (Layout(dp=2, pp=2), "aaaa", [2, 3, 2, 3]),
        (Layout(dp=2, pp=2), "aabb", [0, 1, 2, 3]),
        (Layout(dp=2, tp=2), "aaaa", [0, 0, 2, 2]),
        (Layout(tp=2, pp=2), "aabb", [0, 0, 2, 2]),  # beside no head the first
        (Layout(tp=2, pp=2), "abab", [2, 1, 2, 1]),
        (Layout(dp=3, zero=2), "aaa", [0, 1, 2]),  # each has rows of its own
    ],
)
def test_who_reads_rows_for_whom(layout: Layout, machines: str, reading: list[int]) -> None:
    assert readers(layout, seen(machines)) == reading


@given(LAYOUTS, st.data())
def test_of_each_part_of_the_data_one_rank_of_a_machine_reads_for_all_there(
    layout: Layout, data: st.DataObject
) -> None:
    machines = data.draw(st.text("abc", min_size=layout.size, max_size=layout.size))
    found = readers(layout, seen(machines))
    of = {(layout.place(rank).dp, machines[rank], found[rank]) for rank in range(layout.size)}
    assert len(of) == len({(part, machine) for part, machine, _ in of})
    for rank, reader in enumerate(found):
        assert found[reader] == reader
        assert (layout.place(reader).dp, machines[reader]) == (layout.place(rank).dp, machines[rank])


def test_actor_and_critic_on_the_same_workers_share_the_routes_of_the_data() -> None:
    """The published table's fourth case, dp 2: worker n has the shard dp = n of both, and data n."""
    config = TrainConfig.model_validate(
        {
            "model": {"path": "m"},
            "data": {"train": "t.jsonl"},
            "reward": {"function": "r.py:score"},
            "algorithm": {"recipe": "ppo", "advantage": "gae"},
            "trainer": {"placement": "process", "layout": "d2"},
            "critic": {"placement": "process", "layout": "d2"},
            "runtime": {"kind": "ray"},
            "cluster": {"colocate": [["actor", "critic"]]},
        }
    )
    actor, critic = layout_of(config.trainer.layout), layout_of(config.critic.layout)
    table = {("actor", place.dp, place.tp, place.pp): rank for rank, place in actor.places()}
    table |= {("critic", place.dp, place.tp, place.pp): rank for rank, place in critic.places()}
    assert table == {
        ("actor", 0, 0, 0): 0,
        ("actor", 1, 0, 0): 1,
        ("critic", 0, 0, 0): 0,
        ("critic", 1, 0, 0): 1,
    }
    assert actor.heads == critic.heads == (0, 1)
    (team,) = (team for team in run_teams(config, 0).teams if "trainer/0" in team.bundles[0].workers)
    assert [bundle.workers for bundle in team.bundles] == [("trainer/0", "critic/0"), ("trainer/1", "critic/1")]


@given(layout=LAYOUTS, order=st.sampled_from(["training", "inference"]))
def test_ranks_and_places_are_one_to_one(layout: Layout, order: Order) -> None:
    places = [layout.place(rank, order) for rank in range(layout.size)]
    assert [layout.rank(place, order) for place in places] == [*range(layout.size)]
    assert len(set(places)) == layout.size
    assert Place(layout.dp - 1, layout.pp - 1, layout.cp - 1, layout.tp - 1) == places[-1]


def test_replicas_are_ranks_of_data_that_follow_each_other() -> None:
    """d4r2p2, pipeline outermost: the first four ranks are the first stage's, two of each replica."""
    layout = Layout(dp=4, pp=2, replicas=2, zero=2)
    assert [layout.members(copy) for copy in range(2)] == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert [layout.within(rank) for rank in (0, 3, 4, 7)] == [(0, 0), (1, 1), (0, 2), (1, 3)]
    assert layout.of_replica == Layout(dp=2, pp=2, zero=2)
    assert [Layout(dp=3).members(copy) for copy in range(3)] == [(0,), (1,), (2,)]


@given(layout=st.one_of(LAYOUTS, IN_REPLICAS))
def test_each_rank_is_of_one_replica(layout: Layout) -> None:
    """And has there the part of the model, and of the data, that its place says."""
    members = [layout.members(copy) for copy in range(layout.model_replicas)]
    assert sorted(rank for ranks in members for rank in ranks) == [*range(layout.size)]
    inner = layout.of_replica
    assert (inner.model_replicas, inner.joint, inner.size * layout.model_replicas) == (1, layout.joint, layout.size)
    for rank, here in layout.places():
        copy, number = layout.within(rank)
        assert members[copy][number] == rank
        there = inner.place(number)
        assert (here.pp, here.cp, here.tp) == (there.pp, there.cp, there.tp)
        assert here.dp == copy * inner.dp + there.dp


def test_six_senders_have_three_receivers() -> None:
    assert grouping(6, 3) == [[0, 1], [2, 3], [4, 5]]
    assert grouping(7, 3) == [[0, 1, 6], [2, 3], [4, 5]]
    assert grouping(2, 3) == [[0], [1], []]


@given(senders=st.integers(0, 40), receivers=st.integers(1, 12))
def test_each_sender_has_one_receiver(senders: int, receivers: int) -> None:
    found = grouping(senders, receivers)
    assert sorted(one for each in found for one in each) == [*range(senders)]
    counts = [len(each) for each in found]
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True), "who hears one more comes first"


@given(senders=st.integers(0, 11), more=st.integers(1, 12))
def test_with_fewer_senders_than_receivers_the_last_hear_nobody(senders: int, more: int) -> None:
    assert grouping(senders, senders + more) == [*([one] for one in range(senders)), *([] for _ in range(more))]


@given(st.integers(1, 1_000_000))
def test_what_stages_hand_on_is_filled_up_to_one_of_a_few_sizes(tokens: int) -> None:
    assert [bin_of(each) for each in (1, 5, 9, 100, 112, 113, 4096, 4097)] == [1, 5, 10, 112, 112, 128, 4096, 5120]
    size = bin_of(tokens)
    assert tokens <= size <= 1.25 * tokens
    assert bin_of(size) == size
