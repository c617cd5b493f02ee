"""A group of relays: bytes from one to another, within a deadline."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count

from torch import Tensor

from headrace.weights.plane import WeightError
from headrace.weights.relay.nccl_wire import NcclFault
from headrace.weights.relay.wire import Wait, Wire

STILL_S = 10.0
"""That one bucket may take from one relay to the next."""
_ON_THEIR_WAY = 4
"""Of messages: the next bucket is made ready while one leaves."""


class PeerError(WeightError):
    """Another relay of the group has ended, does not answer, or cannot be reached."""


class NcclError(PeerError):
    """The relays of a group are there, and NCCL does not work between them."""


class Line:
    """Once it has raised, or is closed, its connections end, and all who wait for it hear of it at once. For that it
    alone holds what its wire gives for a message, which keeps the group's connections."""

    def __init__(self, wire: Callable[[], Wire], rank: int, seconds: float) -> None:
        """`wire`: makes that of the group, once all of it are there. `seconds`: that a message may take. Raises
        PeerError, NcclError."""
        self.rank = rank
        self._seconds = seconds
        self._waits: dict[int, Wait] = {}
        self._numbers = count()
        self._wire: Wire | None = None
        try:
            self._wire = wire()
        except NcclFault as error:
            raise NcclError(_words(error)) from error
        except (RuntimeError, OSError) as error:
            raise _failed("a group of relays to come together", error) from error

    def close(self) -> None:
        self._waits.clear()
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    def receive(self, part: Tensor, rank: int) -> Coming:
        """Into `part`, bytes [n] with n > 0, from `rank`. What is posted first comes first. Raises PeerError."""
        return Coming(self, self._begun(self._open.receive, part, rank), part, rank)

    def sending(self, rank: int) -> Sending:
        """To `rank`."""
        return Sending(self, rank)

    def send(self, part: Tensor, rank: int) -> int:
        """The message's number, to be `done`. Raises PeerError."""
        return self._begun(self._open.send, part, rank)

    def done(self, number: int, what: str) -> None:
        """Until the message has left, or come. Raises PeerError."""
        wait = self._waits.pop(number, None)
        if wait is None:
            raise _no_group()
        try:
            wait(self._seconds)
        except RuntimeError as error:
            del wait
            error.__traceback__ = None  # its frames hold the message
            self.close()
            raise _failed(what, error) from error

    @property
    def _open(self) -> Wire:
        if self._wire is None:
            raise _no_group()
        return self._wire

    def _begun(self, post: Callable[[Tensor, int], Wait], part: Tensor, rank: int) -> int:
        number = next(self._numbers)
        try:
            self._waits[number] = post(part, rank)
        except RuntimeError as error:
            error.__traceback__ = None
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


def _no_group() -> PeerError:
    return PeerError("this relay is in no group; it has to be formed anew")


def _failed(what: str, error: Exception) -> PeerError:
    return PeerError(f"waited for {what}: {_words(error)}")


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
