"""Which engine a group begins on, and which one serves a request: pure functions of what is known of the engines.

A version is looked at in two steps, never as a tuple: whether the run's line holds it, then its number. An engine whose
version the line does not hold (its branch was left) admits nothing and serves nothing.

**Gate first, load second.** A group's deadline follows from the version of the engine that it begins on, so the gate is
asked for each engine with its own number, and only among those for which it is open does load decide. The other way
round a run could stop for ever: an idle engine that cannot swap is always the least loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from headrace.engines.pool_state import EngineView
from headrace.weights.version import Version


class VersionLineage(Protocol):
    """The versions that the run's present branch descends from, and its own."""

    def holds(self, version: Version) -> bool: ...

    def held(self, version: Version) -> bool:
        """Whether it is, or was until the run went back."""

    def floor(self, version: Version) -> int:
        """Number of the oldest version that may serve what asks for `version` or newer."""


class AnyLineage:
    """Where there is no run, and so no branch that could be left."""

    def holds(self, version: Version) -> bool:
        return True

    def held(self, version: Version) -> bool:
        """See `VersionLineage.held`."""
        return True

    def floor(self, version: Version) -> int:
        """See `VersionLineage.floor`."""
        return version.number


def candidates(
    engines: Sequence[EngineView], line: VersionLineage, is_open: Callable[[int], bool]
) -> list[tuple[EngineView, Version]]:
    """The engines that a group may begin on now, each with its version. `is_open`: whether the gate is, for a group
    that begins on a version of this number."""
    asked: dict[int, bool] = {}
    found = []
    for engine in engines:
        version = engine.version
        if version is None or not engine.serves or not line.holds(version):
            continue
        if version.number not in asked:
            asked[version.number] = is_open(version.number)
        if asked[version.number]:
            found.append((engine, version))
    return found


def admit(
    engines: Sequence[EngineView], line: VersionLineage, is_open: Callable[[int], bool], affinity: int | None = None
) -> tuple[int, Version] | None:
    """(index of the engine, its version) that a group begins on: of the candidates the one with fewest outstanding
    tokens; of equals that of index `affinity`, then the first. None if there is none."""
    return _least([(engine, version) for engine, version in candidates(engines, line, is_open)], affinity)


def admit_spread(engines: Sequence[EngineView], line: VersionLineage, is_open: Callable[[int], bool]) -> Version | None:
    """The version that a group begins on whose episodes go to any engine that is as new: the candidates' lowest."""
    versions = [version for _, version in candidates(engines, line, is_open)]
    return min(versions, key=lambda version: version.number, default=None)


def route(
    engines: Sequence[EngineView],
    line: VersionLineage,
    minimum: int | None,
    *,
    excluded: Collection[int] = (),
    only: Collection[int] = (),
    exactly: Version | None = None,
    home: int | None = None,
) -> int | None:
    """Index of the engine that serves a request: `home`, the one that was chosen for it, while it may; else that with
    fewest outstanding tokens. `minimum`: number of the oldest version that may, within the line. `only`: of these, if
    any are named. `exactly`: no other version, where one is given. None if there is none."""
    able = [
        (engine, engine.version)
        for engine in engines
        if engine.serves
        and engine.version is not None
        and engine.index not in excluded
        and (not only or engine.index in only)
        and line.holds(engine.version)
        and (minimum is None or engine.version.number >= minimum)
        and exactly in (None, engine.version)
    ]
    if any(engine.index == home for engine, _ in able):
        return home
    chosen = _least(able, None)
    return None if chosen is None else chosen[0]


def to_pin(engines: Sequence[EngineView], line: VersionLineage, count: int) -> list[int]:
    """The engines that an evaluation holds: at most `count`, all of the newest version that any serves, and never all
    that serve unless there is only one. Those with fewest outstanding tokens; empty if none serves. None that is lent:
    the trainer would wait for the evaluation."""
    able = [
        (engine, engine.version)
        for engine in engines
        if engine.serves and engine.version is not None and not engine.lent
    ]
    able = [(engine, version) for engine, version in able if line.holds(version)]
    if not able:
        return []
    newest = max((version for _, version in able), key=lambda version: (version.number, version.branch))
    same = sorted(
        (engine for engine, version in able if version == newest), key=lambda engine: (engine.outstanding, engine.index)
    )
    return sorted(engine.index for engine in same[: max(1, min(count, len(able) - 1))])


def _least(able: Sequence[tuple[EngineView, Version]], affinity: int | None) -> tuple[int, Version] | None:
    if not able:
        return None
    engine, version = min(able, key=lambda one: (one[0].outstanding, one[0].index != affinity, one[0].index))
    return engine.index, version
