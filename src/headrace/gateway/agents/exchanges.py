"""Requests of an episode and their answers, so that a retry gets the answer that is there, and draws no other."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from headrace.gateway.agents.growing import Live

T = TypeVar("T")

_MOST_REFUSED = 1024
"""Bodies that are remembered of those that were refused, each with one number of retries."""


@dataclass(eq=False, slots=True)
class Exchange(Generic[T]):
    """One request. Its work goes on when its connection breaks: the client may ask again."""

    task: asyncio.Task[T]
    readers: int = 0
    """Connections that wait for the answer, or read it."""
    is_delivered: bool = False
    live: Live | None = None
    """While the work goes on: for those who read its answer along."""

    def __post_init__(self) -> None:
        if self.live is not None:
            self.task.add_done_callback(self._end)

    def _end(self, _: object) -> None:
        live, self.live = self.live, None
        if live is not None:
            live.notify()

    @property
    def is_broken(self) -> bool:
        """Whether all its connections went away before the answer was delivered."""
        return not self.is_delivered and self.readers == 0

    @contextmanager
    def reading(self) -> Iterator[Callable[[], None]]:
        """While a connection does; what it gives is called once the answer is delivered."""
        self.readers += 1

        def delivered() -> None:
            self.is_delivered = True

        try:
            yield delivered
        finally:
            self.readers -= 1


class Exchanges(Generic[T]):
    """Of one episode.

    A request is a retry if its body was sent before, and either the client says so, or a connection on which the body
    was sent broke before the answer was delivered. All other requests of an equal body are further samples, and so are
    retries of those that were refused before they began. Which a retry is one of follows from how often its client has
    sent it: what was refused and is sent again is so by a higher number, and what its client gave up after the last of
    its retries never is.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, list[Exchange[T]]] = {}
        self._refused: dict[tuple[bytes, int], int] = {}
        """How many that `begin` refused may come again, of each body and number of retries before."""
        self.retries = 0

    def claim(self, route: str, body: bytes, *, retry: int, begin: Callable[[], Exchange[T]]) -> Exchange[T]:
        """The exchange that the request is a retry of, or a new one, that `begin` begins. `retry`: how often the client
        says to have sent it before. Raises what `begin` raises."""
        digest = hashlib.blake2b(route.encode() + b"\n" + body, digest_size=16).digest()
        known = [each for each in self._known.get(digest, ()) if not _has_failed(each.task)]
        again = next((each for each in known if each.is_broken), None)
        was_refused = again is None and self._take_refused(digest, retry)
        if again is None and retry and not was_refused and known:
            again = known[-1]
        if again is not None:
            self.retries += 1
        else:
            try:
                again = begin()
            except Exception:
                self._note_refused(digest, retry)
                raise
            known.append(again)
            again.task.add_done_callback(partial(self._forget_failed, digest))
        self._known[digest] = known
        return again

    def _forget_failed(self, digest: bytes, task: asyncio.Task[T]) -> None:
        """Its error holds all that it was asked."""
        if _has_failed(task):
            left = [each for each in self._known.pop(digest, ()) if each.task is not task]
            if left:
                self._known[digest] = left

    def _take_refused(self, digest: bytes, retry: int) -> bool:
        """Whether one of the body was refused that had been sent less often; that it was is used up."""
        before = max((sent for body, sent in self._refused if body == digest and sent < retry), default=None)
        if before is None:
            return False
        count = self._refused.pop((digest, before))
        if count > 1:
            self._refused[digest, before] = count - 1
        return True

    def _note_refused(self, digest: bytes, retry: int) -> None:
        key = digest, retry
        self._refused[key] = self._refused.pop(key, 0) + 1  # behind all others: the newest
        if len(self._refused) > _MOST_REFUSED:
            del self._refused[next(iter(self._refused))]

    @property
    def running(self) -> int:
        return sum(not each.task.done() for known in self._known.values() for each in known)

    def cancel(self) -> list[asyncio.Task[T]]:
        """End what runs. Returns the tasks, to be awaited."""
        tasks = [each.task for known in self._known.values() for each in known]
        for task in tasks:
            task.cancel()
        return tasks


def _has_failed(task: asyncio.Task[object]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
