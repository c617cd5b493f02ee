"""By what relays speak: messages between the processes of a group, whatever carries them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

from torch import Tensor
from torch.distributed import Store

from headrace.weights.gloo import gloo_group

Wait = Callable[[float], None]
"""Until a message has left, or come, for so many seconds at most. Raises RuntimeError."""
TAG = 0


class Wire(Protocol):
    """`part` is bytes [n], n > 0, in the host's memory; a message that comes has as many as the one that left. Of two
    that go from one process to another, the first to be posted comes first."""

    def send(self, part: Tensor, rank: int) -> Wait:
        """`part` is not to be changed until it has left. Raises RuntimeError."""

    def receive(self, part: Tensor, rank: int) -> Wait:
        """It is in `part` once it was waited for. Raises RuntimeError."""

    def close(self) -> None:
        """Connections end once nobody keeps what was given to wait for a message."""


class GlooWire:
    def __init__(self, store: Store, rank: int, size: int, host: str, seconds: float) -> None:
        """See `gloo_group`. Raises RuntimeError, OSError."""
        self._group: Any = gloo_group(store, rank, size, host, seconds)

    def send(self, part: Tensor, rank: int) -> Wait:
        """See `Wire.send`."""
        return partial(wait_for, self._group.send([part], rank, TAG))

    def receive(self, part: Tensor, rank: int) -> Wait:
        """See `Wire.receive`."""
        return partial(wait_for, self._group.recv([part], rank, TAG))

    def close(self) -> None:
        """See `Wire.close`."""
        self._group = None


def wait_for(work: Any, seconds: float) -> None:
    """`work`: what a group of torch's has begun. Raises RuntimeError."""
    work.wait(timedelta(seconds=seconds))
