"""A model that is none: what its tokens are likely to be follows from the tokens and their places alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHARE = 2.0**-53

Words = NDArray[np.uint64]


def mixed(words: Words) -> Words:
    """SplitMix64's output function, element by element."""
    words = (words ^ (words >> np.uint64(30))) * _FIRST
    words = (words ^ (words >> np.uint64(27))) * _SECOND
    return words ^ (words >> np.uint64(31))


def stream_of(key: int, number: int) -> Words:
    """[1]: one of the streams of a 64-bit key, for `uniform`."""
    return mixed(mixed(np.array([key & (2**64 - 1)], np.uint64)) + np.array([number], np.uint64) * _GOLDEN)


def uniform(stream: Words, places: NDArray[np.integer]) -> NDArray[np.float64]:
    """In [0, 1), a function of the stream and of each place."""
    return _share(mixed(stream + (places.astype(np.uint64) + np.uint64(1)) * _GOLDEN))


def logprobs_of(tokens: NDArray[np.integer], places: NDArray[np.integer]) -> NDArray[np.float32]:
    """The log-prob of each token at its place in prompt + response, whatever the version of the weights."""
    return (-0.05 - 2.0 * _share(mixed(_placed(tokens, places)))).astype(np.float32)


def identities(tokens: NDArray[np.integer], places: NDArray[np.integer], starts: NDArray[np.integer]) -> Words:
    """[S]: of each sample, which begins at its entry of `starts` [S], a number that no other has: what its tokens are,
    and where."""
    return mixed(np.add.reduceat(mixed(_placed(tokens, places)), starts))


def _placed(tokens: NDArray[np.integer], places: NDArray[np.integer]) -> Words:
    return (tokens.astype(np.uint64) << np.uint64(32)) + places.astype(np.uint64) + _GOLDEN


def _share(words: Words) -> NDArray[np.float64]:
    return (words >> np.uint64(11)).astype(np.float64) * _SHARE
