"""Which of several servers that give rewards is asked next."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.rewards.outcome import FailedReward

LONGEST_REST_S = 60.0


class RequestRefused(FailedReward):
    """A server would not take what it was asked. It is as well as if it had answered."""


@dataclass(slots=True, eq=False)
class RewardServer:
    url: str
    place: int
    asked: int = 0
    """Requests at the moment."""
    failures: int = 0
    """In a row."""
    rests_until: float = float("-inf")
    last: int = 0
    """When it was asked last, as a count of all requests."""


class RewardServers:
    """The least busy of those that are well is asked, in turn where several are.

    One that fails rests, for `rest_s` and after each further failure in a row for twice as long, 60 s at most. After
    its rest it is asked by one request at a time, until it answers. Where all rest, the one whose rest ends first is
    asked all the same.
    """

    def __init__(self, urls: Sequence[str], rest_s: float) -> None:
        self.all = tuple(RewardServer(url, place) for place, url in enumerate(urls))
        self._rest_s = rest_s
        self._count = 0

    def choose(
        self, now: float, without: Container[RewardServer] = (), tried: Container[RewardServer] = ()
    ) -> RewardServer | None:
        """Whom to ask, other than those `without`; None if there is nobody. Of those that are well, somebody who is not
        among those `tried`, if there is one, however busy; where none is well, the same of all. `now`: seconds."""
        there = [server for server in self.all if server not in without]
        well = [server for server in there if self.is_well(server, now)]
        if well:
            return min(well, key=lambda server: (server in tried, server.asked, server.last, server.place))
        return min(there, key=lambda server: (server in tried, server.rests_until, server.place), default=None)

    def is_well(self, server: RewardServer, now: float) -> bool:
        """Whether it may be asked without regard to the others."""
        return now >= server.rests_until and not (server.failures and server.asked)

    @contextmanager
    def asked(self, server: RewardServer, now: Callable[[], float]) -> Iterator[None]:
        """Within, it is asked: it has failed where this is left by an exception, unless the caller was cancelled, or
        the exception is RequestRefused."""
        self._count += 1
        server.asked += 1
        server.last = self._count
        try:
            yield
        except RequestRefused:
            self._answered(server)
            raise
        except Exception:
            server.failures += 1
            rest = self._rest_s * 2 ** min(server.failures - 1, 32)
            server.rests_until = now() + min(rest, LONGEST_REST_S)
            raise
        else:
            self._answered(server)
        finally:
            server.asked -= 1

    def _answered(self, server: RewardServer) -> None:
        server.failures, server.rests_until = 0, float("-inf")
