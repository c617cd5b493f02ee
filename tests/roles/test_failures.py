"""A run whose first samples all fail alike ends; anything else goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.experience.drops import NothingToTrain
from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus
from headrace.roles.failing_samples import FailureWatch

HANGS, RAISES = "reward_timeout: took longer than 10 s", "reward_raised: KeyError: 'x' (r.py, line 3)"


def group(prompt: str, *failures: str | None) -> Group:
    none = np.empty(0, np.int32)
    samples = [
        Sample(
            GroupKey(0, 0, 0),
            episode,
            0,
            none,
            none.astype(bool),
            none.astype(np.float32),
            none,
            none,
            SampleStatus.COMPLETED if failure is None else SampleStatus.FAILED,
            failure=failure,
        )
        for episode, failure in enumerate(failures)
    ]
    return Group(GroupKey(0, 0, 0), prompt, 0, 2, tuple(samples))


class Bench:
    def __init__(self, worth: int = 6) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.watch = FailureWatch(lambda kind, data: self.events.append((kind, data)), worth=worth)

    def ends(self, *groups: Group) -> str | None:
        """What the run ends with, on the last of these."""
        *others, last = groups
        for one in others:
            self.watch.look_at(one)
        try:
            self.watch.look_at(last)
        except NothingToTrain as end:
            return str(end)
        return None


def test_a_batchs_worth_of_samples_that_fail_alike_ends_the_run_with_the_reason() -> None:
    bench = Bench()
    said = bench.ends(group("a", HANGS, HANGS, HANGS), group("b", HANGS, HANGS, "reward_timeout: the last"))
    assert said == (
        "all of the first 6 samples failed, the last one with 'reward_timeout: the last'; mend that, and --resume the "
        "run, or begin again with --fresh"
    )
    assert bench.events == [("failed_sample", {"prompt": "a", "message": HANGS})]


def test_one_that_is_scored_or_fails_otherwise_lets_the_run_go_on() -> None:
    assert Bench().ends(group("a", HANGS, None, HANGS), *[group("b", HANGS, HANGS, HANGS)] * 9) is None
    bench = Bench()
    assert bench.ends(group("a", HANGS, RAISES, HANGS), *[group("b", HANGS, HANGS, HANGS)] * 9) is None
    assert [data["message"] for _, data in bench.events] == [HANGS, RAISES], "the first of each kind"


def test_one_row_of_the_data_is_no_reason_to_end() -> None:
    bench = Bench(worth=2)
    assert bench.ends(*[group("a", HANGS, HANGS)] * 5) is None
    assert bench.ends(group("b", HANGS, HANGS)) is not None


@given(st.lists(st.sampled_from([HANGS, RAISES, None]), max_size=12), st.integers(1, 6))
def test_it_ends_where_a_batchs_worth_is_full_of_one_kind_and_nowhere_else(samples: list, worth: int) -> None:
    bench, ended = Bench(worth), None
    for place, failure in enumerate(samples):
        if bench.ends(group(f"prompt {place}", failure)) is not None:
            ended = place
            break
    first = samples[: max(worth, 2)]
    alike = len(first) == max(worth, 2) and len(set(first)) == 1 and first[0] is not None
    assert ended == (len(first) - 1 if alike else None)
