"""Scores of rows: what a model gives for their tokens, as columns behind refs. Run where the model is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from headrace.experience.columns import refs_of
from headrace.models.packing import MicroBatch, PackRow, pack
from headrace.runtime.refs import Ref
from headrace.training.rows.packed_rows import RowToTrain, pack_row, put_each, split
from headrace.training.rows.read_ahead import ReadAhead
from headrace.training.rows.row_reader import RowReader

Score = Callable[[MicroBatch], Tensor]
"""[N] float32, 0 outside the mask; or [N, 2], whose second column has what is of the whole sample at its last token."""


class Scoring:
    """Blocking; call it on one compute lane."""

    def __init__(self, reader: RowReader, score: Score, column: str, reads: Sequence[str] = ()) -> None:
        """`reader`: by which rows come. `column`: of the scores of tokens. `reads`: columns that `score` finds in the
        micro-batch, beside tokens and mask."""
        self._reader = reader
        self._score = score
        self._column = column
        self._reads = tuple(reads)
        self._rows: ReadAhead[RowToTrain] = ReadAhead(self._packed)

    def read(self, parts: Sequence[Sequence[RowToTrain]]) -> None:
        """See `ReadAhead.read`."""
        self._rows.read(parts)

    def __call__(self, rows: Sequence[RowToTrain], *, tells: bool = True) -> list[tuple[Ref] | tuple[Ref, float]]:
        """Of each row a ref to its scores, and what is of the whole sample, if the model gives that; from one forward
        pass. `tells`: False for a rank that computes what another tells. Raises RefLost."""
        parts = split(self._score(pack(self._rows(rows))).numpy(), rows)
        if not tells:
            return []
        of_tokens = [part if part.ndim == 1 else part[:, 0].copy() for part in parts]
        kept = put_each(self._reader.refs, self._column, of_tokens)
        return [(ref,) if part.ndim == 1 else (ref, float(part[-1, 1])) for ref, part in zip(kept, parts, strict=True)]

    def _packed(self, rows: Sequence[RowToTrain]) -> list[PackRow]:
        return self._reader(refs_of(rows), lambda refs: [pack_row(refs, row, self._reads) for row in rows])
