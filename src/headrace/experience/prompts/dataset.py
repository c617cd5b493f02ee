"""The prompts of a run, and the order in which they are handed out.

Invariants: a plain order is a pure function of (size, seed, shuffle), the same on every machine; every
(epoch, position) is handed out once as attempt 0, and once more for each time that it was returned.
"""

from __future__ import annotations

import copy
import hashlib
import json
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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
from headrace.experience.sources.survey import Asked, CheckRows, Needs, SourceSurvey, columns_of, id_of
from headrace.experience.text.messages import Message, Tool, as_messages, as_tools


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of the dataset."""

    prompt_id: str
    content: str | list[Message]
    """Text, or chat messages: see `messages`."""
    row: dict[str, Any]
    """The whole row, JSON values only: rewards and environments read it."""
    tools: list[Tool] | None = None
    """JSON schemas of what the policy may call, for the chat template."""

    def copied(self) -> Prompt:
        """The same for who may change it: content, row and tools are its own, to their depth."""
        return Prompt(self.prompt_id, *map(_copied, (self.content, self.row, self.tools)))


def _copied(value: Any) -> Any:
    """Of a JSON value; `copy.deepcopy` takes three times as long, in the event loop."""
    if isinstance(value, dict):
        return {name: _copied(entry) for name, entry in value.items()}
    return [_copied(entry) for entry in value] if isinstance(value, list) else value


_ROWS_DIGESTED = 256


class SourcePrompts(Sequence[Prompt]):
    """The prompts of one source, each read when it is asked for."""

    def __init__(self, name: str, rows: Rows, survey: SourceSurvey, needs: Needs) -> None:
        """`name`: the source's, where there are several; then ids begin with it."""
        self.name = name
        self.lengths = survey.lengths
        """Bytes of each prompt, as UTF-8: of its text, or of its messages without what a template adds."""
        self.messages = survey.messages
        """Chat messages of each prompt; 0 of one that is text."""
        self.numbers = survey.numbers
        """Of the column that orders the rows, if one does."""
        self._rows = rows
        self._needs = needs
        self._nested = needs.nested
        self._kept: NDArray[np.intp] | None = None
        """Indices of the rows that are left, if some were left out."""
        self.first_chat = None if survey.first_chat is None else self[survey.first_chat]
        """The first prompt of chat messages, if one is."""
        self.first_with_tools = None if survey.first_with_tools is None else self[survey.first_with_tools]

    @property
    def where(self) -> str:
        return self._rows.where

    def name_of(self, index: int) -> str:
        """As `train.jsonl, line 3`."""
        return name_row(self._rows.where, self._rows.unit, self._rows.number(self._place(index)))

    def without(self, left_out: Collection[int]) -> SourcePrompts:
        """All but the prompts at these indices, in their order."""
        left = np.delete(np.arange(len(self)), sorted(left_out))
        fewer = copy.copy(self)
        fewer._kept = left if self._kept is None else self._kept[left]
        fewer.lengths, fewer.messages = self.lengths[left], self.messages[left]
        fewer.numbers = self.numbers[left] if len(self.numbers) else self.numbers
        return fewer

    def __len__(self) -> int:
        return len(self._rows) if self._kept is None else len(self._kept)

    def contents(self) -> str:
        """How many rows, and a digest of the length of every prompt and of the whole of some rows: so it is worked out
        without reading all of them again, and misses only changes that keep the lengths."""
        digest = hashlib.sha256(self.lengths.tobytes() + self.numbers.tobytes())
        for place in range(0, len(self), max(1, len(self) // _ROWS_DIGESTED)):
            digest.update(json.dumps(self._rows[self._place(place)], sort_keys=True).encode())
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
        place, needs = self._place(index), self._needs
        number, where = self._rows.number(place), self.name_of(index)
        row = with_nested(self._rows[place], self._nested)
        content, tools = needs.asked(row, where)
        own = str(number) if needs.id_column is None else id_of(row, needs.id_column, where)
        return Prompt(f"{self.name}/{own}" if self.name else own, content, row, tools)

    def _place(self, index: int) -> int:
        return index if self._kept is None else int(self._kept[index])


def source_of(prompt_id: str) -> str:
    """The name of a prompt's source, where there are several."""
    return prompt_id.partition("/")[0]


def open_prompts(
    source: SourceConfig | str,
    *,
    prompt_column: str,
    id_column: str | None = None,
    tools_column: str | None = None,
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
    needs = Needs(
        asked=partial(_asked, prompt_column, tools_column),
        prompt_column=prompt_column,
        tools_column=tools_column,
        id_column=id_column,
        required=tuple(required_columns),
        read=tuple(read_columns),
        check=check,
        numbers=numbers,
    )
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

    def without(self, places: Collection[int]) -> PromptDataset:
        """All but the prompts at `places`, in their order: what is not there is never issued."""
        parts: list[Sequence[Prompt]] = []
        begin = 0
        for part in self.parts:
            left_out = {place - begin for place in places if begin <= place < begin + len(part)}
            begin += len(part)
            if isinstance(part, SourcePrompts):
                parts.append(part.without(left_out) if left_out else part)
            else:
                parts.append([prompt for place, prompt in enumerate(part) if place not in left_out])
        return PromptDataset(*parts)

    def first_chat(self) -> Prompt | None:
        """The first prompt of chat messages, also if it was left out since."""
        return self._first(lambda part: part.first_chat, lambda prompt: not isinstance(prompt.content, str))

    def first_with_tools(self) -> Prompt | None:
        """As `first_chat`."""
        return self._first(lambda part: part.first_with_tools, lambda prompt: prompt.tools is not None)

    def _first(self, told: Callable[[SourcePrompts], Prompt | None], is_one: Callable[[Prompt], bool]) -> Prompt | None:
        for part in self.parts:
            found = told(part) if isinstance(part, SourcePrompts) else next(filter(is_one, part), None)
            if found is not None:
                return found
        return None


def _asked(prompt_column: str, tools_column: str | None, row: dict[str, Any], where: str) -> Asked:
    content = _content(row, prompt_column, where)
    return content, _tools(row, tools_column, content, where)


def _content(row: dict[str, Any], column: str, where: str) -> str | list[Message]:
    if column not in row:
        raise ConfigError(
            f"{where} has no prompt column {column!r} ({columns_of(row)}); set data.prompt_column to one of them"
        )
    content = row[column]
    if content in ("", []):
        raise ConfigError(f"{where} has an empty prompt in column {column!r}; fill it in, or remove the line")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        try:
            return as_messages(content)
        except ValueError as error:
            raise ConfigError(f"{where}, column {column!r}: {error}") from error
    raise ConfigError(
        f"{where}: the prompt in column {column!r} is a JSON {json_type(content)}; give text, or a list of "
        "messages {'role': text, 'content': text}"
    )


def _tools(row: dict[str, Any], column: str | None, content: str | list[Message], where: str) -> list[Tool] | None:
    try:
        tools = None if column is None else as_tools(row.get(column))
        if tools is not None and isinstance(content, str):
            raise ValueError("a prompt of text has no place for tools; give it as chat messages")
    except ValueError as error:
        mend = "if the column is about something else, set data.tools_column to null"
        raise ConfigError(f"{where}, column {column!r}: {error}; {mend}") from error
    return tools


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
    """Index into the dataset, or into the groups of a record."""


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
