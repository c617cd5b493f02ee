"""Replicas that the others go on without: no node has room for them. They come back once one has, unless they cannot
meet the others there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from headrace.runtime.placing import NoRoom, room_within
from headrace.runtime.together import together
from headrace.runtime.workers import WorkerLost

_SOON_S = 10.0
"""For which one that was lost waits for room, while the others stand."""

Make = Callable[[int], Awaitable[None]]
"""Makes a replica's ranks anew, from their specs. Raises WorkerLost, caused by NoRoom where no node has any."""


class AbsentReplicas:
    def __init__(self, make: Make, is_whole: Callable[[int], bool]) -> None:
        """`is_whole`: whether no rank of a replica is lost."""
        self._make = make
        self._is_whole = is_whole
        self._why: dict[int, str] = {}
        self._refused: set[int] = set()
        """Those of them that do not come back."""
        self._made: set[int] = set()
        """Those of them that were made anew meanwhile, and take part in nothing yet."""

    def __contains__(self, replica: int) -> bool:
        return replica in self._why

    @property
    def why(self) -> Mapping[int, str]:
        """The reason of each."""
        return self._why

    @property
    def wanted(self) -> Sequence[int]:
        """Those that may come back."""
        return [replica for replica in self._why if replica not in self._refused]

    def refuse(self, replicas: Iterable[int], why: str) -> None:
        """The others have to go on without these, which are made, until all are made anew."""
        for replica in replicas:
            self._why[replica] = why
            self._refused.add(replica)

    def forget(self) -> None:
        """All are made anew."""
        self._why.clear()
        self._refused.clear()
        self._made.clear()

    async def renew(self, replicas: Collection[int]) -> list[int]:
        """Those that take part from now on: of `replicas` those that could be made anew, and those that were made since
        they are absent. The others are absent. Raises WorkerLost."""
        new = [replica for replica in replicas if replica not in self]
        with room_within(_SOON_S):
            short = await together(self._short(replica) for replica in new)
        back = [replica for replica in sorted(self._made) if self._is_whole(replica)]
        self._made.clear()
        for replica in back:
            del self._why[replica]
        self._why |= {replica: why for replica, why in zip(new, short, strict=True) if why is not None}
        return sorted([*back, *(replica for replica in new if replica not in self)])

    async def make_again(self) -> None:
        """One of them, which takes part once it is renewed. Raises WorkerLost where that cannot be."""
        failed: WorkerLost | None = None
        for replica in self.wanted:
            try:
                with room_within(_SOON_S):
                    await self._make(replica)
            except WorkerLost as lost:
                failed = lost
            else:
                self._made.add(replica)
                return
        if failed is not None:
            raise failed

    async def _short(self, replica: int) -> str | None:
        """What is, of a replica that cannot be made anew."""
        try:
            await self._make(replica)
        except WorkerLost as lost:
            if not isinstance(lost.__cause__, NoRoom):
                raise
            return str(lost)
        return None
