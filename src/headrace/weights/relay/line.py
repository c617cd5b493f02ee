"""A group of relays: bytes from one to another, within a deadline."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch import Tensor
from torch.distributed import Store

from headrace.weights.gloo import gloo_group
from headrace.weights.plane import WeightError

STILL_S = 20.0
"""That one bucket may take from one relay to the next."""
_ON_THEIR_WAY = 4
"""Of messages: the next bucket is made ready while one leaves."""
_TAG = 0


class PeerError(WeightError):
    """Another relay of the group has ended, does not answer, or cannot be reached."""


class Line:
    """Once it has raised, or is closed, all others of the group hear of it: its connections end."""

    def __init__(self, store: Store, rank: int, size: int, host: str, seconds: float = STILL_S) -> None:
        """Returns once all of the group are there. `host`: the address that this process speaks from. Raises
        PeerError."""
        self.rank = rank
        self._seconds = seconds
        self._group: Any = None
        with self._failing("the group comes together"):
            self._group = gloo_group(store, rank, size, host, seconds)

    def close(self) -> None:
        self._group = None

    def receive(self, part: Tensor, rank: int) -> Coming:
        """Into `part`, bytes [n] with n > 0, from `rank`. What is posted first comes first."""
        with self._failing(f"bytes from relay {rank}"):
            return Coming(self, self._present().recv([part], rank, _TAG), part, rank)

    def sending(self, rank: int) -> Sending:
        """To `rank`."""
        return Sending(self, rank)

    def start(self, part: Tensor, rank: int) -> Any:
        with self._failing(f"bytes to relay {rank}"):
            return self._present().send([part], rank, _TAG)

    def wait(self, work: Any, what: str) -> None:
        with self._failing(what):
            work.wait(timedelta(seconds=self._seconds))

    def _present(self) -> Any:
        if self._group is None:
            raise PeerError("this relay is in no group; it has to be formed anew")
        return self._group

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, OSError) as error:  # of c10d; ours has its own words
            self.close()
            if isinstance(error, WeightError):
                raise
            raise PeerError(f"{what}: {' '.join(str(error).split())[:300]}") from error


class Coming:
    """Bytes that come."""

    def __init__(self, line: Line, work: Any, part: Tensor, rank: int) -> None:
        self._line = line
        self._work = work
        self._part = part
        self._rank = rank

    def here(self) -> Tensor:
        """Raises PeerError."""
        self._line.wait(self._work, f"bytes from relay {self._rank}")
        return self._part


class Sending:
    """Bytes that leave, some messages at a time."""

    def __init__(self, line: Line, rank: int) -> None:
        self._line = line
        self._rank = rank
        self._going: deque[tuple[Any, Tensor]] = deque()

    def put(self, part: Tensor) -> None:
        """`part`, bytes [n] with n > 0, is not to be changed until `settle`. Raises PeerError."""
        self._going.append((self._line.start(part, self._rank), part))
        while len(self._going) > _ON_THEIR_WAY:
            self._first()

    def settle(self) -> None:
        """Until all have left. Raises PeerError."""
        while self._going:
            self._first()

    def _first(self) -> None:
        work, _ = self._going[0]
        self._line.wait(work, f"bytes to relay {self._rank}")
        self._going.popleft()
