"""The prompts of a run, and the order in which they are handed out.

Invariants: a plain order is a pure function of (size, seed, shuffle), the same on every machine; every
(epoch, position) is handed out once as attempt 0, and once more for each time that it was returned.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from headrace.config import ConfigError
from headrace.config.data import SourceConfig
from headrace.experience.sample import GroupKey
from headrace.experience.sources.open import open_rows
from headrace.experience.sources.rows import Rows, name_row, with_nested
from headrace.experience.sources.spool import json_type
from headrace.experience.sources.survey import CheckRows, Needs, SourceSurvey, columns_of, extremes, id_of


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of the dataset."""

    prompt_id: str
    content: str | list[dict[str, str]]
    """Text, or chat messages, each with `role` and `content`."""
    row: dict[str, Any]
    """The whole row, JSON values only: rewards and environments read it."""


_ROWS_DIGESTED = 256


class SourcePrompts(Sequence[Prompt]):
    """The prompts of one source, each read when it is asked for."""

    def __init__(self, name: str, rows: Rows, survey: SourceSurvey, needs: Needs) -> None:
        """`name`: the source's, where there are several; then ids begin with it."""
        self.name = name
        self.lengths = survey.lengths
        """Characters of each prompt."""
        self.numbers = survey.numbers
        """Of the column that orders the rows, if one does."""
        self._rows = rows
        self._needs = needs
        self._nested = needs.nested

    @property
    def where(self) -> str:
        return self._rows.where

    def name_of(self, index: int) -> str:
        """As `train.jsonl, line 3`."""
        return name_row(self._rows.where, self._rows.unit, self._rows.number(index))

    def __len__(self) -> int:
        return len(self._rows)

    def contents(self) -> str:
        """How many rows, and a digest of the length of every prompt and of the whole of some rows: so it is worked out
        without reading all of them again, and misses only changes that keep the lengths."""
        digest = hashlib.sha256(self.lengths.tobytes() + self.numbers.tobytes())
        for place in range(0, len(self), max(1, len(self) // _ROWS_DIGESTED)):
            digest.update(json.dumps(self._rows[place], sort_keys=True).encode())
        return f"{len(self):,} rows, {digest.hexdigest()[:16]}"

    @overload
    def __getitem__(self, index: int) -> Prompt: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Prompt]: ...

    def __getitem__(self, index: int | slice) -> Prompt | Sequence[Prompt]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        number, needs = self._rows.number(index), self._needs
        where = self.name_of(index)
        row = with_nested(self._rows[index], self._nested)
        content = needs.content(row, needs.prompt_column, where)
        own = str(number) if needs.id_column is None else id_of(row, needs.id_column, where)
        return Prompt(f"{self.name}/{own}" if self.name else own, content, row)


def source_of(prompt_id: str) -> str:
    """The name of a prompt's source, where there are several."""
    return prompt_id.partition("/")[0]


def open_prompts(
    source: SourceConfig | str,
    *,
    prompt_column: str,
    id_column: str | None = None,
    required_columns: Iterable[str] = (),
    read_columns: Iterable[str] = (),
    check: CheckRows | None = None,
    numbers: str | None = None,
    name: str = "",
) -> SourcePrompts:
    """Look at every row once, and at none again before it is asked for. A prompt's id is `id_column`, or its number.

    `read_columns`: those that `check` reads. `numbers`: a column with a number in every row. `name`: see
    `SourcePrompts`. Raises ConfigError naming the source, the row (from 1) and the mend.
    """
    source = SourceConfig(path=source) if isinstance(source, str) else source
    needs = Needs(_content, prompt_column, id_column, tuple(required_columns), tuple(read_columns), check, numbers)
    survey = SourceSurvey(needs)
    rows = open_rows(source, survey)
    survey.finish(rows)
    return SourcePrompts(name, rows, survey, needs)


class PromptDataset:
    """The prompts of all sources, one source after another."""

    def __init__(self, *parts: Sequence[Prompt]) -> None:
        self.parts = parts
        self._ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < len(self):
            raise IndexError(f"prompt {index} of {len(self)}")
        place = bisect_right(self._ends, index)
        return self.parts[place][index - (self._ends[place - 1] if place else 0)]

    def __iter__(self) -> Iterator[Prompt]:
        for part in self.parts:
            yield from part

    def contents(self) -> dict[str, str]:
        """What each source holds, by its place, as `1,000 rows, 5f0c…`; see `SourcePrompts.contents`."""
        parts = [part for part in self.parts if isinstance(part, SourcePrompts)]
        return {f"{part.name}: {part.where}" if part.name else part.where: part.contents() for part in parts}

    def extremes(self, count: int) -> Iterator[Prompt]:
        """Of each source the `count` longest prompts by characters, and the shortest: what fits of them, all do."""
        for part in self.parts:
            chosen = extremes(part.lengths, count) if isinstance(part, SourcePrompts) else range(len(part))
            yield from (part[place] for place in chosen)


def _content(row: dict[str, Any], column: str, where: str) -> str | list[dict[str, str]]:
    if column not in row:
        raise ConfigError(
            f"{where} has no prompt column {column!r} ({columns_of(row)}); set data.prompt_column to one of them"
        )
    content = row[column]
    if content in ("", []):
        raise ConfigError(f"{where} has an empty prompt in column {column!r}; fill it in, or remove the line")
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(_is_message(part) for part in content):
        return content
    raise ConfigError(
        f"{where}: the prompt in column {column!r} is a JSON {json_type(content)}; give text, or a list of "
        "messages {'role': text, 'content': text}"
    )


def _is_message(part: Any) -> bool:
    return (
        isinstance(part, dict)
        and {"role", "content"} <= part.keys()
        and all(isinstance(value, str) for value in part.values())
    )


class PromptOrder:
    """Which row stands at which position of which epoch."""

    _EPOCHS_KEPT = 4
    """Groups of neighbouring epochs are in flight together, so a few permutations are in use at a time."""

    def __init__(self, size: int, seed: int, shuffle: bool, source: int = 0) -> None:
        """`source`: its number, where there are several; each has an order of its own."""
        self.size = size
        self._seed = seed | source << 32
        self._shuffle = shuffle
        self._permutations: dict[int, NDArray[np.intp]] = {}

    def row(self, epoch: int, position: int) -> int:
        """Index into the dataset. Raises IndexError unless 0 <= position < size."""
        if not 0 <= position < self.size:
            raise IndexError(f"position {position} of an epoch of {self.size} prompts")
        return int(self._permutation(epoch)[position]) if self._shuffle else position

    def rows(self, epoch: int) -> NDArray[np.intp]:
        """[size]: those of all positions."""
        return self._permutation(epoch) if self._shuffle else np.arange(self.size)

    def _permutation(self, epoch: int) -> NDArray[np.intp]:
        if epoch not in self._permutations:
            # Sorted raw words: numpy promises that a bit generator's stream never changes, but not so for
            # `Generator.permutation`.
            words = np.random.Philox(key=np.array([self._seed, epoch], dtype=np.uint64)).random_raw(self.size)
            if len(self._permutations) == self._EPOCHS_KEPT:
                del self._permutations[next(iter(self._permutations))]
            self._permutations[epoch] = np.argsort(words, kind="stable")
        return self._permutations[epoch]


class Order(Protocol):
    def row(self, epoch: int, position: int) -> int:
        """Index into the dataset."""
        ...


class IssuedPrompt(NamedTuple):
    key: GroupKey
    prompt: Prompt
    row: int
    """Index into the dataset."""


class PromptSource:
    """Hands out attempts at prompts, epoch after epoch. It persists nothing: the ledger keeps its place."""

    def __init__(
        self,
        dataset: PromptDataset,
        order: Order,
        *,
        epochs: int | None,
        max_attempts: int,
        frontier: tuple[int, int] | None = None,
        drawn: Callable[[int, int], int | None] = lambda epoch, position: None,
    ) -> None:
        """Begin at `frontier`, the first (epoch, position) never handed out; `epochs` None never ends. `drawn`: the row
        that the ledger has for a position, which goes before what `order` says; None if it has none.

        Raises ConfigError if the frontier is not in the dataset: it was changed since the ledger was written.
        """
        epoch, position = frontier or (0, 0)
        if position > len(dataset):
            raise ConfigError(
                f"the run stands at prompt {position} of epoch {epoch}, but the dataset has {len(dataset)} "
                "rows: it was changed since the run began; restore it, or begin again with --fresh"
            )
        self._dataset = dataset
        self._order = order
        self._epochs = epochs
        self._max_attempts = max_attempts
        self._epoch = epoch
        self._position = position
        self._returned: deque[GroupKey] = deque()
        self._drawn = drawn

    @property
    def frontier(self) -> tuple[int, int]:
        """First (epoch, position) never handed out."""
        if self._position == len(self._dataset):
            return self._epoch + 1, 0
        return self._epoch, self._position

    def next(self) -> IssuedPrompt | None:
        """The next attempt, returned prompts first. None if there is none now: a return can bring one yet."""
        if self._returned:
            key = self._returned.popleft()
        else:
            epoch, position = self.frontier
            if self._epochs is not None and epoch >= self._epochs:
                return None
            self._epoch, self._position = epoch, position + 1
            key = GroupKey(epoch, position, 0)
        row = self._row(key.epoch, key.position)
        return IssuedPrompt(key, self._dataset[row], row)

    def returned(self, key: GroupKey) -> bool:
        """Hand the dropped attempt's prompt out again as a new attempt; False if attempts are exhausted."""
        if key.attempt + 1 >= self._max_attempts:
            return False
        self._returned.append(key._replace(attempt=key.attempt + 1))
        return True

    def prompt(self, epoch: int, position: int) -> Prompt:
        return self._dataset[self._row(epoch, position)]

    def _row(self, epoch: int, position: int) -> int:
        drawn = self._drawn(epoch, position)
        return self._order.row(epoch, position) if drawn is None else drawn
