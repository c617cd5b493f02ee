"""What the plugin leaves out of the log-probs that a vLLM tells, in vLLM's own form of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from headrace_vllm.kept_sets import tell_only_what_is_kept, without_what_is_cut

OUT = -np.inf


class Lists(NamedTuple):
    """As vLLM's `LogprobsLists`: of each token itself, then of the likeliest ids."""

    logprob_token_ids: Any
    logprobs: Any
    sampled_token_ranks: Any
    cu_num_generated_tokens: Any = None


def lists(logprobs: list[list[float]]) -> Lists:
    rows = np.array(logprobs, np.float32)
    return Lists(np.arange(rows.size).reshape(rows.shape), rows, np.ones(len(rows), np.int64))


def test_ids_that_are_cut_are_left_out_and_a_token_itself_never() -> None:
    """The second token's set is the token alone."""
    told = without_what_is_cut(lists([[-0.5, -0.4, -0.5, OUT, OUT], [0.0, 0.0, OUT, OUT, OUT]]))
    assert isinstance(told, Lists)
    assert [row.tolist() for row in told.logprob_token_ids] == [[0, 1, 2], [5, 6]]
    assert [row.tolist() for row in told.logprobs] == [[-0.5, np.float32(-0.4), -0.5], [0.0, 0.0]]
    assert told.sampled_token_ranks.tolist() == [1, 1]


def test_where_nothing_is_cut_or_the_form_is_another_all_stays() -> None:
    for given in (lists([[-0.5, -0.4, -3.0]]), lists([[-0.5]]), Lists(None, None, None), "other", lists([[0.0]])[:1]):
        assert without_what_is_cut(given) is given


def test_a_processor_is_told_what_is_left_once() -> None:
    seen: list[Any] = []

    class Processor:
        def _update_sample_logprobs(self, logprobs_lists: Any) -> str:
            seen.append(logprobs_lists)
            return "updated"

    for _ in range(2):  # vLLM registers plugins in each of its ways to begin
        tell_only_what_is_kept(Processor)
    assert Processor()._update_sample_logprobs(lists([[-0.1, -0.1, OUT]])) == "updated"
    assert [len(row) for row in seen[0].logprobs] == [2]
    tell_only_what_is_kept(object)
