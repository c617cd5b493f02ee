"""What the ranks of a group have of a checkpoint: taken, and then written, by those who save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.store.media.files import Digest
from headrace.training.protocol import CheckpointError, Written
from headrace.training.rank_workers import Ranks, ranks_of, who_saves


class KeptReference:
    """See `TrainerGroup.kept_reference`."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._takers: Sequence[int] = ()

    async def take_state(self, *, copies: bool) -> None:
        """See `TrainerRank.take_reference`. Raises WorkerLost."""
        self._takers = await take(self._ranks, "take_reference", copies)

    async def write_state(self, path: Path) -> Mapping[str, Digest]:
        """As `TrainerGroup.write_state`. Raises OSError, CheckpointError, WorkerLost."""
        return await write(self._ranks, "write_reference", self._takers, path)

    async def load(self, path: Path) -> None:
        """What was written. Raises CheckpointError."""
        every = dict.fromkeys(ranks_of(self._ranks), (str(path),))
        await self._ranks.each("load_reference", every, what="its part of a checkpoint")


async def take(ranks: Ranks, method: str, copies: bool) -> Sequence[int]:
    """Ask those who save; returns who they are."""
    takers = who_saves(ranks)
    await ranks.each(method, dict.fromkeys(takers, (copies,)), what="what a checkpoint holds")
    return takers


async def write(
    ranks: Ranks, method: str, takers: Sequence[int], path: Path, what: str = "files of a checkpoint"
) -> Mapping[str, Digest]:
    """Have them write it, and see that all of the tensors that they write together were written. Of the other files
    what they hold, by their path in the folder."""
    given = dict.fromkeys(takers, (str(path),))
    found: dict[int, Written] = await ranks.each(method, given, what=what)
    count, size = sum(one.count for one in found.values()), found[takers[0]].size
    if count != size:
        raise CheckpointError(
            f"ranks wrote {count} bytes of weights into {path}, which has {size}: their parts do not add up to the "
            "model; what was committed before stays"
        )
    return {name: digest for one in found.values() for name, digest in one.files.items()}
