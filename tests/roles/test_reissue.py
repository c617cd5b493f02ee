"""An attempt under which workers are lost: alone after the second loss, given up after the third."""

from __future__ import annotations

from headrace.experience.sample import GroupKey
from headrace.roles.reissue import Blame, Losses, LostTime

POISON, NEIGHBOUR = GroupKey(0, 0, 0), GroupKey(0, 1, 0)


def test_the_third_loss_under_an_attempt_ends_it_and_after_the_second_it_is_alone() -> None:
    losses = Losses()
    assert not losses.lost(POISON)
    assert not losses.is_alone(POISON)
    assert not losses.lost(POISON)
    assert losses.is_alone(POISON)
    assert not losses.is_alone(NEIGHBOUR)
    assert losses.lost(POISON)


def test_an_attempt_that_ended_and_the_next_one_of_its_prompt_begin_anew() -> None:
    losses = Losses()
    for _ in range(2):
        losses.lost(POISON)
    assert not losses.is_alone(POISON._replace(attempt=1))
    losses.ended(POISON)
    assert not losses.lost(POISON)


def test_the_attempt_after_one_that_was_given_up_is_alone_from_the_first() -> None:
    losses, again = Losses(), POISON._replace(attempt=1)
    assert [losses.lost(POISON) for _ in range(3)] == [False, False, True]
    losses.ended(POISON)
    assert losses.is_alone(again)
    assert not losses.is_alone(NEIGHBOUR)
    assert [losses.lost(again) for _ in range(3)] == [False, False, True]


def test_losses_of_a_worker_count_until_it_finishes_a_group_but_for_prompts_that_were_alone_before() -> None:
    blame, third = Blame(), GroupKey(0, 2, 0)
    assert [blame.lost([POISON, NEIGHBOUR]), blame.lost([POISON, NEIGHBOUR])] == [1, 2]
    turns = [POISON, NEIGHBOUR] * 3 + [POISON._replace(attempt=1), NEIGHBOUR._replace(attempt=1)]
    assert [blame.lost([key]) for key in turns] == [3, 4, 4, 4, 4, 4, 4, 4]
    assert [blame.lost([third]), blame.lost([])] == [5, 6], "another; and one that was lost before it was at anything"
    blame.finished()
    assert [blame.lost([POISON]), blame.lost([POISON])] == [1, 1]


def test_time_of_several_workers_counts_once() -> None:
    now = 10.0
    lost = LostTime(lambda: now)
    lost.lost(4.0)
    lost.lost(2.0)
    assert lost.seconds() == 6.0, "up to now it has counted"
    now = 15.0
    lost.lost(8.0)
    assert lost.seconds() == 11.0
    now = 20.0
    lost.lost(18.0)
    assert lost.seconds() == 13.0
