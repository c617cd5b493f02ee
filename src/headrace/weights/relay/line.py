"""A group of relays: bytes from one to another, within a deadline."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from itertools import count
from typing import Any

from torch import Tensor
from torch.distributed import Store

from headrace.weights.gloo import gloo_group
from headrace.weights.plane import WeightError

STILL_S = 10.0
"""That one bucket may take from one relay to the next."""
_ON_THEIR_WAY = 4
"""Of messages: the next bucket is made ready while one leaves."""
_TAG = 0


class PeerError(WeightError):
    """Another relay of the group has ended, does not answer, or cannot be reached."""


class Line:
    """Once it has raised, or is closed, its connections end, and all who wait for it hear of it at once. For that it
    alone holds what c10d gives for a message, which keeps the group's connections."""

    def __init__(self, store: Store, rank: int, size: int, host: str, seconds: float) -> None:
        """Returns once all of the group are there. `host`: the address that this process speaks from. `seconds`: that
        a message, or another relay's coming, may take. Raises PeerError."""
        self.rank = rank
        self._seconds = seconds
        self._works: dict[int, Any] = {}
        self._numbers = count()
        try:
            self._group: Any = gloo_group(store, rank, size, host, seconds)
        except (RuntimeError, OSError) as error:
            raise _failed("a group of relays to come together", error) from error

    def close(self) -> None:
        self._works.clear()
        self._group = None

    def receive(self, part: Tensor, rank: int) -> Coming:
        """Into `part`, bytes [n] with n > 0, from `rank`. What is posted first comes first. Raises PeerError."""
        return Coming(self, self._begun("recv", part, rank), part, rank)

    def sending(self, rank: int) -> Sending:
        """To `rank`."""
        return Sending(self, rank)

    def send(self, part: Tensor, rank: int) -> int:
        """The message's number, to be `done`. Raises PeerError."""
        return self._begun("send", part, rank)

    def done(self, number: int, what: str) -> None:
        """Until the message has left, or come. Raises PeerError."""
        work = self._works.pop(number, None)
        if work is None:
            raise PeerError("this relay is in no group; it has to be formed anew")
        try:
            work.wait(timedelta(seconds=self._seconds))
        except RuntimeError as error:
            del work
            self.close()
            raise _failed(what, error) from error

    def _begun(self, method: str, part: Tensor, rank: int) -> int:
        if self._group is None:
            raise PeerError("this relay is in no group; it has to be formed anew")
        number = next(self._numbers)
        try:
            self._works[number] = getattr(self._group, method)([part], rank, _TAG)
        except RuntimeError as error:
            self.close()
            raise _failed(f"bytes to or from relay {rank}", error) from error
        return number


class Coming:
    """Bytes that come."""

    def __init__(self, line: Line, number: int, part: Tensor, rank: int) -> None:
        self._line = line
        self._number = number
        self._part = part
        self._rank = rank

    def here(self) -> Tensor:
        """Raises PeerError."""
        self._line.done(self._number, f"bytes from relay {self._rank}")
        return self._part


class Sending:
    """Bytes that leave, some messages at a time."""

    def __init__(self, line: Line, rank: int) -> None:
        self._line = line
        self._rank = rank
        self._going: deque[tuple[int, Tensor]] = deque()

    def put(self, part: Tensor) -> None:
        """`part`, bytes [n] with n > 0, is not to be changed until `settle`. Raises PeerError."""
        self._going.append((self._line.send(part, self._rank), part))
        while len(self._going) > _ON_THEIR_WAY:
            self._first()

    def settle(self) -> None:
        """Until all have left. Raises PeerError."""
        while self._going:
            self._first()

    def _first(self) -> None:
        number, _ = self._going[0]
        self._line.done(number, f"bytes to relay {self._rank}")
        self._going.popleft()


def _failed(what: str, error: Exception) -> PeerError:
    return PeerError(f"waited for {what}: {' '.join(str(error).split())[:300]}")
