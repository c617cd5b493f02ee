"""Which engine serves a request."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from headrace.engines.protocol import Engine, EngineError
from headrace.weights.version import Version


def choose_engine(
    loads: Sequence[int], versions: Sequence[Version], min_version: Version | None, excluded: Collection[int] = ()
) -> int | None:
    """Index of the least loaded engine at `min_version` or newer that is not excluded; the first of equals.

    None if there is none. `loads` are requests in flight.
    """
    eligible = [
        index
        for index, version in enumerate(versions)
        if index not in excluded and (min_version is None or version >= min_version)
    ]
    return min(eligible, key=lambda index: loads[index], default=None)


class Router:
    """Spreads requests over engines by what it has in flight on each."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        if not engines:
            raise ValueError("a router needs at least one engine")
        self._engines = tuple(engines)
        self._loads = [0] * len(engines)

    @property
    def loads(self) -> tuple[int, ...]:
        """Requests in flight on each engine."""
        return tuple(self._loads)

    @contextmanager
    def lease(self, min_version: Version | None, excluded: Collection[int] = ()) -> Iterator[tuple[int, Engine]]:
        """(index, engine) for one request. Raises EngineError if no engine may serve it."""
        versions = [engine.version for engine in self._engines]
        index = choose_engine(self._loads, versions, min_version, excluded)
        if index is None:
            have = ", ".join(f"{version}{' (failed)' if i in excluded else ''}" for i, version in enumerate(versions))
            wanted = "any version" if min_version is None else f"{min_version} or newer"
            raise EngineError(f"no engine is left for a request that needs {wanted}; engines have {have}")
        self._loads[index] += 1
        try:
            yield index, self._engines[index]
        finally:
            self._loads[index] -= 1
