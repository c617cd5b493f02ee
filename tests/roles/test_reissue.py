"""An attempt under which workers are lost: alone after the second loss, given up after the third."""

from __future__ import annotations

from headrace.experience.sample import GroupKey
from headrace.roles.reissue import Losses

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
