"""Invariants of docs/design.md, broken on purpose: the verdict on a simulated run finds each.

Others are planted and found in test_fault_matrix.py, with the same verdict (helpers/planted_bugs.py):

* a group enters a batch by its deadline alone, and takes a place that another's has claimed;
* what is issued again has the issue number that it had;
* what is issued again goes on from the tokens of the lost worker;
* the critic steps as soon as it has seen the batch, before the actor;
* a lost group keeps its deadline on an engine that is older;
* after a return to a commit, a group begins on an engine of the branch that was left;
* a group that is newer than the commit that the run returns to keeps its deadline.

Of three more a whole run shows nothing, and engines/test_left_branches.py finds them:

* a request is sent to an engine of the branch that was left;
* a request that is older than the return waits for a version that was taken back;
* tokens are taken whatever version sampled them.

These are found here (helpers/broken_invariants.py):

* the ledger does not hear of a drop;
* the gate is one group too wide;
* the mask of stale tokens is off by one;
* the columns of rows that left stay;
* a receipt is given before its record is durable;
* a checkpoint is committed before its files are durable;
* a restore leaves out what was trained after the commit.
"""

import pytest
from broken_invariants import BROKEN
from planted_bugs import HIDDEN, PLANTS

from headrace.controller.simulation.verdict import tried

FOUND_BY = {
    "a_drop_is_not_counted": (0, "groups are due by batch"),
    "the_gate_is_a_group_too_wide": (0, "groups are due by batch"),
    "the_mask_is_off_by_one": (5, "the record has a staleness of 2"),
    "refs_of_rows_that_left_are_kept": (0, "refs were not freed"),
    "a_receipt_before_the_record_is_durable": (0, "the ledger has"),
    "a_checkpoint_is_named_before_its_files_are_durable": (0, "is damaged"),
    "what_was_trained_after_the_commit_stays_trained": (10, "and not on each of"),
}
"""A seed that finds it, to be tried first, and what the verdict says then."""


def test_the_list_is_whole() -> None:
    assert set(FOUND_BY) == set(BROKEN)
    assert len({**PLANTS, **HIDDEN, **BROKEN}) == len(PLANTS) + len(HIDDEN) + len(BROKEN)


@pytest.mark.parametrize("name", FOUND_BY)
def test_it_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, words = FOUND_BY[name]
    assert not tried(first)[2], "it is the bug that is found"
    BROKEN[name](monkeypatch)
    for seed in [first, *range(30)]:
        if found := tried(seed)[2]:
            assert seed != first or any(words in each for each in found), found
            return
    pytest.fail("no seed of 30 finds it")
