"""Threads: as many as the processors that are left, and never so many teams that OpenMP stops spinning."""

import threading

import pytest
import torch

from headrace.controller.threads import ThreadShare


@pytest.mark.parametrize("total", [1, 2, 3, 4, 16])
def test_teams_side_by_side_never_outnumber_the_processors(total: int) -> None:
    share = ThreadShare(total, take_turns=False)
    engine = share.threads("engine", alone=True)
    for alone in (True, False):
        trainer = share.threads("trainer", alone=alone)
        assert trainer >= 1
        assert engine + trainer - 1 <= total, "two teams share the process's first thread"
    if total > 1:
        assert engine + share.threads("trainer", alone=False) == total


def test_by_hand() -> None:
    beside, turns = ThreadShare(2, take_turns=False), ThreadShare(2, take_turns=True)
    assert (beside.threads("engine", alone=True), beside.threads("trainer", alone=True)) == (1, 2)
    assert beside.threads("trainer", alone=False) == 1
    assert (turns.threads("engine", alone=True), turns.threads("trainer", alone=True)) == (2, 2)
    assert beside.threads("weights", alone=True) == 1


def test_torch_is_told_for_each_call() -> None:
    share = ThreadShare(2, take_turns=False)
    counts: list[int] = []
    inside, leave = threading.Event(), threading.Event()

    def engine() -> None:
        with share.around("engine"):
            inside.set()
            leave.wait(5)

    def trainer() -> None:
        with share.around("trainer"):
            counts.append(torch.get_num_threads())

    first = threading.Thread(target=engine)
    first.start()
    inside.wait(5)
    for wait in (False, True):
        second = threading.Thread(target=trainer)
        second.start()
        second.join()
        if not wait:
            leave.set()
            first.join()
    assert counts == [1, 2]
