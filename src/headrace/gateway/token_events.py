"""The JSON of `/generate`: token ids with their log-probs, and the versions that sampled them."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.algorithms.kept_sets import KeptSets, joined
from headrace.engines.protocol import TokenChunk


async def token_events(chunks: AsyncGenerator[TokenChunk, None]) -> AsyncGenerator[dict[str, Any], None]:
    start = 0
    async with aclosing(chunks):
        async for chunk in chunks:
            yield token_event([chunk], start)
            start += len(chunk.tokens)


def token_event(chunks: list[TokenChunk], start: int) -> dict[str, Any]:
    reason = chunks[-1].finish_reason
    kept = joined([chunk.kept for chunk in chunks], [len(chunk.tokens) for chunk in chunks])
    return {
        "token_ids": [token for chunk in chunks for token in chunk.tokens.tolist()],
        "logprobs": [logprob for chunk in chunks for logprob in chunk.logprobs.tolist()],
        "versions": version_spans(
            np.concatenate([chunk.branches for chunk in chunks]),
            np.concatenate([chunk.versions for chunk in chunks]),
            start,
        ),
        "finish_reason": None if reason is None else reason.value,
        **({} if kept is None else {"kept": kept_event(kept)}),
    }


def kept_event(kept: KeptSets) -> dict[str, Any]:
    return {
        "vocab_size": kept.vocab_size,
        "counts": kept.counts.tolist(),
        "data": b64encode(kept.data.tobytes()).decode("ascii"),
    }


def version_spans(branches: NDArray[np.int32], numbers: NDArray[np.int32], start: int) -> list[list[int]]:
    """[branch, number, start, end) of each run of tokens that one version sampled, the first at place `start`."""
    if len(numbers) == 0:
        return []
    changes = np.flatnonzero((np.diff(branches) != 0) | (np.diff(numbers) != 0)) + 1
    edges = [0, *changes.tolist(), len(numbers)]
    return [[int(branches[first]), int(numbers[first]), start + first, start + last] for first, last in pairwise(edges)]
