"""What Ray carries: bytes of the wire codec, and the arrays' memory beside them. Nothing else is given to its
serializer, so nothing of ours is ever pickled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.runtime.wire.wire_format import Parcel, pack, unpack
from headrace.runtime.wire.wire_types import WireTypes

Box = tuple[bytes, list[NDArray[np.uint8]]]
"""An envelope and its buffers: Ray shares arrays between the processes of a node without a copy."""


def boxed(value: Any, types: WireTypes, what: str) -> Box:
    """Raises WireError for what is no plain data."""
    parcel = pack(value, types, what)
    return parcel.envelope, [np.frombuffer(buffer, np.uint8) for buffer in parcel.buffers]


def opened(box: Sequence[Any], types: WireTypes, what: str) -> Any:
    """Inverse of `boxed`. Arrays that lay beside the envelope cannot be written. Raises WireError."""
    envelope, buffers = box
    return unpack(Parcel(envelope, [memoryview(each) for each in buffers]), types, what)
