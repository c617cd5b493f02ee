"""The kept sets of tokens sampled under top-k or top-p: which ids each could have been.

A token that was sampled from a cut distribution has the probability that the cut one gives it. Whoever works with its
log-prob later, under whatever weights, has to normalise over the same ids: so they travel with the token.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


class KeptSetError(ValueError):
    """What was given is no kept sets."""


@dataclass(frozen=True, slots=True)
class KeptSets:
    """One set of token ids for each of T tokens, stored as ids or as a bitmap, whichever is smaller for that token.

    A set of c ids takes c ids of 2 bytes (4 for vocabularies above 2^16), or a bitmap of vocabulary / 8 bytes in which
    bit i % 8 of byte i // 8 is id i.
    """

    vocab_size: int
    counts: NDArray[np.int32]
    """[T]: ids in each token's set; 0 where the token was not sampled from a cut distribution: any id was possible."""
    data: NDArray[np.uint8]
    """The sets one after another."""

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def nbytes(self) -> int:
        return self.counts.nbytes + self.data.nbytes

    @property
    def sizes(self) -> NDArray[np.int64]:
        """[T]: bytes of `data` that each token takes."""
        return _sizes(self.counts, self.vocab_size)

    @staticmethod
    def none(length: int, vocab_size: int) -> KeptSets:
        """`length` tokens without a set."""
        return KeptSets(vocab_size, np.zeros(length, np.int32), np.empty(0, np.uint8))

    @staticmethod
    def of(ids: NDArray[np.integer], counts: NDArray[np.integer], vocab_size: int) -> KeptSets:
        """From the ids of all sets laid end to end, [sum of counts], distinct within each set.

        Raises KeptSetError for ids outside the vocabulary, or another number of ids than `counts` says.
        """
        sizes_of_sets: NDArray[np.int32] = counts.astype(np.int32)
        return KeptSets._of(ids, sizes_of_sets, vocab_size)

    @staticmethod
    def _of(ids: NDArray[np.integer], counts: NDArray[np.int32], vocab_size: int) -> KeptSets:
        if len(ids) != counts.sum():
            raise KeptSetError(f"{len(ids)} ids are given for sets of {counts.sum()} ids together")
        if len(ids) and not (ids.min() >= 0 and ids.max() < vocab_size):
            raise KeptSetError(f"a kept id is outside the vocabulary of {vocab_size} tokens")
        sizes, as_bitmap = _sizes(counts, vocab_size), _as_bitmap(counts, vocab_size)
        data = np.zeros(sizes.sum(), np.uint8)
        of_bitmap = np.repeat(as_bitmap, counts)
        if of_bitmap.any():
            data[np.repeat(as_bitmap, sizes)] = _bitmaps(ids[of_bitmap], counts[as_bitmap], vocab_size)
        listed = ids[~of_bitmap].astype(_id_dtype(vocab_size))
        data[np.repeat(~as_bitmap, sizes)] = listed.view(np.uint8)
        return KeptSets(vocab_size, counts, data)

    @staticmethod
    def checked(vocab_size: int, counts: NDArray[np.int32], data: NDArray[np.uint8]) -> KeptSets:
        """From parts that nobody vouches for. Raises KeptSetError."""
        if vocab_size < 1 or (len(counts) and not (counts.min() >= 0 and counts.max() <= vocab_size)):
            raise KeptSetError(f"kept sets of a vocabulary of {vocab_size} tokens have sizes outside of it")
        sets = KeptSets(vocab_size, counts, data)
        if sets.sizes.sum() != len(data):
            raise KeptSetError(f"kept sets of {sets.sizes.sum()} bytes have {len(data)}")
        ids, found = sets.ids()
        if not np.array_equal(found, counts) or (len(ids) and int(ids.max()) >= vocab_size):
            raise KeptSetError(f"kept sets hold ids outside the vocabulary of {vocab_size} tokens, or too few")
        owner = np.repeat(np.arange(len(counts)), counts)
        keys = np.sort(owner * np.int64(vocab_size) + ids)
        if (keys[1:] == keys[:-1]).any():
            raise KeptSetError("a kept set holds an id twice")
        return sets

    def ids(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The ids of all sets laid end to end, [M], in no particular order within a set; and how many each has, [T]."""
        as_bitmap = _as_bitmap(self.counts, self.vocab_size)
        sizes = self.sizes
        listed = self.data[np.repeat(~as_bitmap, sizes)].view(_id_dtype(self.vocab_size))
        if not as_bitmap.any():
            return listed.astype(np.int32), self.counts
        unpacked = [
            np.unpackbits(bitmap, bitorder="little").nonzero()[0]
            for bitmap in self.data[np.repeat(as_bitmap, sizes)].reshape(-1, _bitmap_bytes(self.vocab_size))
        ]
        counts = self.counts.copy()
        counts[as_bitmap] = [len(part) for part in unpacked]
        ids = np.empty(counts.sum(), np.int32)
        of_bitmap = np.repeat(as_bitmap, counts)
        ids[of_bitmap] = np.concatenate(unpacked)
        ids[~of_bitmap] = listed
        return ids, counts

    def contain(self, tokens: NDArray[np.integer]) -> NDArray[np.bool_]:
        """[T]: whether each token is in its set; True where it has none."""
        ids, counts = self.ids()
        owner = np.repeat(np.arange(len(counts)), counts)
        found = np.zeros(len(counts), np.bool_)
        found[owner[ids == np.asarray(tokens)[owner]]] = True
        return found | (counts == 0)

    def __getitem__(self, part: slice) -> KeptSets:
        """Of consecutive tokens."""
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise ValueError(f"the step is {step}; kept sets are cut into consecutive ones only")
        ends = np.concatenate([[0], np.cumsum(self.sizes)])
        stop = max(stop, start)
        return KeptSets(self.vocab_size, self.counts[start:stop], self.data[ends[start] : ends[stop]])


def joined(parts: Iterable[KeptSets | None], lengths: Iterable[int]) -> KeptSets | None:
    """Sets of tokens laid end to end; None where no part has any. `lengths`: of the parts, tokens without sets too.

    Raises KeptSetError if the parts are of different vocabularies.
    """
    parts, lengths = list(parts), list(lengths)
    sizes = {part.vocab_size for part in parts if part is not None}
    if not sizes:
        return None
    if len(sizes) > 1:
        raise KeptSetError(f"kept sets of vocabularies of {sorted(sizes)} tokens cannot be joined")
    (vocab_size,) = sizes
    whole = [KeptSets.none(n, vocab_size) if p is None else p for p, n in zip(parts, lengths, strict=True)]
    return KeptSets(
        vocab_size, np.concatenate([part.counts for part in whole]), np.concatenate([part.data for part in whole])
    )


def most_bytes(vocab_size: int, top_k: int) -> int:
    """Bytes that a token's set takes at most, its count included, where it has `top_k` ids at most (0: any number)."""
    largest = _bitmap_bytes(vocab_size)
    return 4 + (largest if top_k == 0 else min(largest, top_k * _id_dtype(vocab_size).itemsize))


def _bitmaps(ids: NDArray[np.integer], counts: NDArray[np.int32], vocab_size: int) -> NDArray[np.uint8]:
    """Of sets laid end to end, one after another; a set at a time, so that no more than one is held as bytes."""
    bits = np.zeros(vocab_size, np.bool_)
    packed = []
    for part in np.split(ids, np.cumsum(counts)[:-1]):
        bits[part] = True
        packed.append(np.packbits(bits, bitorder="little"))
        bits[part] = False
    return np.concatenate(packed)


def _id_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


def _bitmap_bytes(vocab_size: int) -> int:
    return (vocab_size + 7) // 8


def _as_bitmap(counts: NDArray[np.int32], vocab_size: int) -> NDArray[np.bool_]:
    return counts.astype(np.int64) * _id_dtype(vocab_size).itemsize > _bitmap_bytes(vocab_size)


def _sizes(counts: NDArray[np.int32], vocab_size: int) -> NDArray[np.int64]:
    listed = counts.astype(np.int64) * _id_dtype(vocab_size).itemsize
    return np.where(_as_bitmap(counts, vocab_size), _bitmap_bytes(vocab_size), listed)
