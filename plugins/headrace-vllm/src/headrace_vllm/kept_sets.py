"""Only what a truncated distribution keeps is told.

Headrace reads kept sets from the log-probs of the likeliest ids, and has to ask for as many as `top_k` may keep. Of a
token these are mostly a few: the others have a log-prob of -inf, and as an object and as text each they would be nearly
all that vLLM's API process does.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np


def tell_only_what_is_kept(processor: type[Any]) -> None:
    """`processor`: vLLM's `LogprobsProcessor`, of which one that works otherwise stays as it is."""
    own = getattr(processor, "_update_sample_logprobs", None)
    if own is None or hasattr(own, "__wrapped__"):
        return

    @functools.wraps(own)
    def update(self: Any, lists: Any, *rest: Any, **named: Any) -> Any:
        return own(self, without_what_is_cut(lists), *rest, **named)

    processor._update_sample_logprobs = update


def without_what_is_cut(lists: Any) -> Any:
    """`lists`: vLLM's `LogprobsLists`, a tuple that begins with ids and log-probs, [tokens, 1 + asked for]: of each
    token itself, then of the likeliest ids in their order. The same without the ids behind the last one whose log-prob
    is not -inf; `lists` itself where there are none, or where its form is another."""
    try:
        ids, logprobs, *others = lists
        counts = 1 + np.count_nonzero(~np.isneginf(np.asarray(logprobs)[:, 1:]), axis=1)
    except (TypeError, ValueError, IndexError):
        return lists
    if counts.size == 0 or counts.min() == logprobs.shape[1]:
        return lists
    cut = [[row[:count] for row, count in zip(rows, counts, strict=True)] for rows in (ids, logprobs)]
    return type(lists)(*cut, *others)
