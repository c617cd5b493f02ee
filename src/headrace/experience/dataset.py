"""The prompts of a run, and the order in which they are handed out.

Invariants: the order is a pure function of (size, seed, shuffle), the same on every machine; every
(epoch, position) is handed out once as attempt 0, and once more for each time that it was returned.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.config import ConfigError
from headrace.experience.messages import Message, Tool, as_messages, as_tools
from headrace.experience.sample import GroupKey


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


class PromptDataset:
    """The prompts of one JSONL file, in file order, all in memory."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self._prompts = tuple(prompts)

    @staticmethod
    def from_jsonl(
        path: str | Path,
        *,
        prompt_column: str,
        id_column: str | None,
        required_columns: Iterable[str] = (),
        tools_column: str | None = None,
    ) -> PromptDataset:
        """Read and check every row, skipping blank lines. A prompt's id is `id_column`, or its line number.

        Raises ConfigError naming the file, the line (from 1) and the mend.
        """
        file = Path(path)
        required = tuple(required_columns)
        prompts: list[Prompt] = []
        line_of: dict[str, int] = {}
        for number, line in enumerate(_lines(file), start=1):
            if not line.strip():
                continue
            where = f"{file}, line {number}"
            row = _row(line, where)
            content = _content(row, prompt_column, where)
            for column in required:
                if row.get(column) is None:
                    raise ConfigError(
                        f"{where} has no value in column {column!r} ({_columns(row)}); fill it in, or "
                        "correct the config key that names the column"
                    )
            prompt_id = str(number) if id_column is None else _id(row, id_column, where)
            if prompt_id in line_of:
                raise ConfigError(
                    f"{where} has the id {prompt_id!r} of line {line_of[prompt_id]} (column {id_column!r}); "
                    "make ids unique, or leave data.id_column out to use line numbers"
                )
            line_of[prompt_id] = number
            prompts.append(Prompt(prompt_id, content, row, _tools(row, tools_column, content, where)))
        if not prompts:
            raise ConfigError(f"{file} holds no rows; write one JSON object a line, as {{{prompt_column!r}: ...}}")
        return PromptDataset(prompts)

    def without(self, places: Collection[int]) -> PromptDataset:
        """All but the prompts at `places`, in their order: what is not there is never issued."""
        left_out = set(places)
        if not left_out:
            return self
        return PromptDataset([prompt for place, prompt in enumerate(self._prompts) if place not in left_out])

    def __len__(self) -> int:
        return len(self._prompts)

    def __getitem__(self, index: int) -> Prompt:
        return self._prompts[index]

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self._prompts)


def _lines(file: Path) -> Iterator[bytes]:
    if not file.exists():
        raise ConfigError(f"no dataset at {file}; correct the path, which is relative to the working directory")
    try:
        with file.open("rb") as stream:
            yield stream.readline().removeprefix(b"\xef\xbb\xbf")
            yield from stream
    except OSError as error:
        raise ConfigError(f"cannot read the dataset {file}: {error.strerror}; give a readable JSONL file") from error


def _row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line.decode(), parse_constant=_refuse_constant, object_pairs_hook=_object)
        if b"\\u" in line:  # only an escape can smuggle in half a surrogate pair, which no tokenizer takes
            json.dumps(row, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        text = line.strip()[:60].decode(errors="replace")
        raise ConfigError(f"{where} is not JSON ({error}): {text!r}; write one JSON object a line") from error
    if not isinstance(row, dict):
        raise ConfigError(f"{where} is a JSON {_json_type(row)}; write an object, as {{'prompt': ...}}")
    return row


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it has {next(name for name in row if names.count(name) > 1)!r} twice")
    return row


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def _content(row: dict[str, Any], column: str, where: str) -> str | list[Message]:
    if column not in row:
        raise ConfigError(
            f"{where} has no prompt column {column!r} ({_columns(row)}); set data.prompt_column to one of them"
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
        f"{where}: the prompt in column {column!r} is a JSON {_json_type(content)}; give text, or a list of "
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


def _id(row: dict[str, Any], column: str, where: str) -> str:
    if column not in row:
        raise ConfigError(
            f"{where} has no id column {column!r} ({_columns(row)}); set data.id_column to one of them, "
            "or leave it out to use line numbers"
        )
    value = row[column]
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ConfigError(f"{where}: the id in column {column!r} is {value!r}; give text or a whole number")
    return str(value)


def _columns(row: dict[str, Any]) -> str:
    return "it has " + (", ".join(repr(name) for name in row) or "no columns")


def _json_type(value: Any) -> str:
    names = {"dict": "object", "list": "list", "str": "string", "bool": "boolean", "NoneType": "null"}
    return names.get(type(value).__name__, "number")


class PromptOrder:
    """Which row stands at which position of which epoch."""

    _EPOCHS_KEPT = 4
    """Groups of neighbouring epochs are in flight together, so a few permutations are in use at a time."""

    def __init__(self, size: int, seed: int, shuffle: bool) -> None:
        self.size = size
        self._seed = seed
        self._shuffle = shuffle
        self._permutations: dict[int, NDArray[np.intp]] = {}

    def row(self, epoch: int, position: int) -> int:
        """Index into the dataset. Raises IndexError unless 0 <= position < size."""
        if not 0 <= position < self.size:
            raise IndexError(f"position {position} of an epoch of {self.size} prompts")
        return int(self._permutation(epoch)[position]) if self._shuffle else position

    def _permutation(self, epoch: int) -> NDArray[np.intp]:
        if epoch not in self._permutations:
            # Sorted raw words: numpy promises that a bit generator's stream never changes, but not so for
            # `Generator.permutation`.
            words = np.random.Philox(key=np.array([self._seed, epoch], dtype=np.uint64)).random_raw(self.size)
            if len(self._permutations) == self._EPOCHS_KEPT:
                del self._permutations[next(iter(self._permutations))]
            self._permutations[epoch] = np.argsort(words, kind="stable")
        return self._permutations[epoch]


class IssuedPrompt(NamedTuple):
    key: GroupKey
    prompt: Prompt


class PromptSource:
    """Hands out attempts at prompts, epoch after epoch. It persists nothing: the ledger keeps its place."""

    def __init__(
        self,
        dataset: PromptDataset,
        order: PromptOrder,
        *,
        epochs: int | None,
        max_attempts: int,
        frontier: tuple[int, int] | None = None,
    ) -> None:
        """Begin at `frontier`, the first (epoch, position) never handed out; `epochs` None never ends.

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
        return IssuedPrompt(key, self.prompt(key.epoch, key.position))

    def returned(self, key: GroupKey) -> bool:
        """Hand the dropped attempt's prompt out again as a new attempt; False if attempts are exhausted."""
        if key.attempt + 1 >= self._max_attempts:
            return False
        self._returned.append(key._replace(attempt=key.attempt + 1))
        return True

    def prompt(self, epoch: int, position: int) -> Prompt:
        return self._dataset[self._order.row(epoch, position)]
