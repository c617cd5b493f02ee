"""Threads: a lane that computes alone has all of them, one beside another its share."""

import threading

import torch

from headrace.controller.threads import ThreadShare


def test_share_by_how_many_compute() -> None:
    share = ThreadShare(8)
    assert share.threads("engine", busy=0) == 8
    assert share.threads("trainer", busy=1) == 4
    assert share.threads("weights", busy=0) == 1
    assert ThreadShare(1).threads("engine", busy=1) == 1


def test_torch_is_told_for_each_call() -> None:
    share = ThreadShare(2)
    counts: dict[str, list[int]] = {"engine": [], "trainer": []}
    inside, leave = threading.Event(), threading.Event()

    def engine() -> None:
        with share.around("engine"):
            counts["engine"].append(torch.get_num_threads())
            inside.set()
            leave.wait(5)

    def trainer() -> None:
        with share.around("trainer"):
            counts["trainer"].append(torch.get_num_threads())

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
    assert counts == {"engine": [2], "trainer": [1, 2]}
