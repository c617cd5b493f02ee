"""What the record of rollouts keeps of a sample beside its text: arrays of one length, and metadata, packed.

msgpack as in `codec`, and as little trusted when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from headrace.experience.records.codec import CodecError, check_metadata, pack_array, typed, unpack_array

_FORMAT = 1
_ARRAYS = {
    "tokens": np.dtype("<i4"),
    "loss_mask": np.dtype("|b1"),
    "trained": np.dtype("|b1"),
    "logprobs": np.dtype("<f4"),
    "versions": np.dtype("<i4"),
    "branches": np.dtype("<i4"),
    "advantages": np.dtype("<f4"),
    "trainer_logprobs": np.dtype("<f4"),
    "temperatures": np.dtype("<f4"),
}
_OPTIONAL = ("trained", "advantages", "trainer_logprobs", "temperatures")


@dataclass(frozen=True, slots=True)
class RolloutDetail:
    """Arrays of length T."""

    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    """True where the policy chose the token."""
    logprobs: NDArray[np.float32]
    """Of the policy that sampled; 0 where it chose nothing."""
    versions: NDArray[np.int32]
    branches: NDArray[np.int32]
    trained: NDArray[np.bool_] | None = None
    """True where the token entered the loss; None of a sample that was not trained on."""
    advantages: NDArray[np.float32] | None = None
    trainer_logprobs: NDArray[np.float32] | None = None
    """Under the weights that the batch began with; None where they are not known."""
    temperatures: NDArray[np.float32] | None = None
    """That each token was sampled at, 0 where the policy chose nothing; None where all were at the run's."""
    terms: Mapping[str, float] = field(default_factory=dict)
    """Of a reward of several terms."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """The sample's, as `check_metadata` has it."""


def encode_detail(detail: RolloutDetail) -> bytes:
    arrays = {
        name: pack_array(np.asarray(value), dtype)
        for name, dtype in _ARRAYS.items()
        if (value := getattr(detail, name)) is not None
    }
    terms = {name: float(value) for name, value in detail.terms.items()}
    more = [dict(detail.metadata)] if detail.metadata else []
    packed: bytes = msgpack.packb([_FORMAT, arrays, terms, *more], unicode_errors="surrogatepass")
    return packed


def decode_detail(data: bytes) -> RolloutDetail:
    """Inverse of `encode_detail`. Raises CodecError."""
    try:
        unpacked = msgpack.unpackb(data, unicode_errors="surrogatepass", strict_map_key=True)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"what is kept of a rollout is not msgpack: {error}") from error
    if not isinstance(unpacked, list) or len(unpacked) not in (3, 4) or unpacked[0] != _FORMAT:
        raise CodecError("what is kept of a rollout is of another format than this version of headrace writes")
    _, packed, terms, *more = unpacked
    metadata = more[0] if more else {}
    check_metadata(metadata)
    packed = typed(packed, dict, "a rollout's arrays")
    missing = [name for name in _ARRAYS if name not in packed and name not in _OPTIONAL]
    if missing or set(packed) - set(_ARRAYS):
        raise CodecError(f"a rollout has the arrays {', '.join(map(str, packed))[:200]}, and lacks {missing}")
    arrays = {name: unpack_array(value, _ARRAYS[name], name) for name, value in packed.items()}
    if len({len(array) for array in arrays.values()}) != 1:
        raise CodecError("a rollout's arrays differ in length")
    named = {
        typed(name, str, "a term's name"): typed(value, float, f"the term {name}")
        for name, value in typed(terms, dict, "terms").items()
    }
    return RolloutDetail(**arrays, terms=named, metadata=metadata)
