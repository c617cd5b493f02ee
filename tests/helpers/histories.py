"""Histories of an episode, each as a path through a tree of what was added to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """What a node of the tree adds."""

    node: int
    """Two histories that share a node have it by the same number, and no other node has that."""
    ids: Sequence[int]
    sampled: Sequence[bool]
    """Of each of `ids`, whether the policy sampled it."""


Path = list[Part]
"""From the beginning to the end of a history."""
History = tuple[list[int], list[bool]]
"""Ids, and a mask of them."""


def as_recorded(paths: Sequence[Path]) -> list[History]:
    """Of each path what was sampled, also where another one shares it."""
    return [
        ([id for part in path for id in part.ids], [each for part in path for each in part.sampled]) for path in paths
    ]


def trained_once(paths: Sequence[Path]) -> list[History]:
    """Of each path what is trained: of a node that several share, in the first of them."""
    seen: set[int] = set()
    found = []
    for path in paths:
        own = [Part(part.node, part.ids, [each and part.node not in seen for each in part.sampled]) for part in path]
        seen.update(part.node for part in path)
        found += as_recorded([own])
    return found
