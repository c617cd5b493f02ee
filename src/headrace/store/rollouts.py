"""rollouts.db: the samples of a run that its record keeps, beside run.db. A run without it has kept none.

It tells, and decides nothing: no run is restored from it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

import regex

from headrace.store.errors import StoreError
from headrace.store.media.database import Database
from headrace.store.media.files import LOCAL, Files
from headrace.store.run_store import ROLLOUTS_NAME
from headrace.store.tables import ROLLOUTS

Order = Literal["batch", "reward", "advantage", "tokens", "staleness"]
ORDERS: tuple[Order, ...] = ("batch", "reward", "advantage", "tokens", "staleness")
DROPPED = "dropped"
"""Status of a sample of a group that was finished and not trained on; the others are those of samples."""
_SEARCH_S = 30.0
"""Most seconds that a pattern may take on one text."""


class Turn(NamedTuple):
    by_policy: bool
    """False: what the policy was given."""
    text: str
    """Special tokens included. Untrusted: as the model or an environment wrote it."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sample, as it is told of."""

    batch: int
    """In which it was trained, or which was composed when it failed or was dropped."""
    at: float
    """Seconds since the epoch."""
    key: tuple[int, int, int]
    """Epoch, position, attempt: its group."""
    episode: int
    sample: int
    """Which sample of the episode."""
    prompt_id: str
    status: str
    """Of the sample, or `dropped`."""
    reason: str | None
    """Why it failed or was dropped."""
    reward: float | None
    advantage: float | None
    """Mean over the tokens that the policy chose."""
    tokens: int
    """That the policy chose."""
    staleness: int | None
    """Of its stalest token, in versions; None where nothing was trained."""
    turns: tuple[Turn, ...]
    data: bytes
    """What else is known of it, packed by `headrace.experience.records.rollout_codec`."""


@dataclass(frozen=True, slots=True)
class Query:
    """Which rollouts, in which order. Conditions that are None hold for all."""

    first_batch: int | None = None
    last_batch: int | None = None
    prompt_id: str | None = None
    statuses: tuple[str, ...] | None = None
    pattern: str | None = None
    """A regular expression, found in the text of all turns; lower and upper case alike."""
    order: Order = "batch"
    descending: bool = False
    limit: int | None = None

    def compiled(self) -> regex.Pattern[str] | None:
        """Raises StoreError if the pattern is none."""
        if self.pattern is None:
            return None
        try:
            return regex.compile(self.pattern, regex.IGNORECASE)
        except regex.error as error:
            raise StoreError(f"--grep is {self.pattern!r}, which is no regular expression: {error}") from error

    def holds(self, rollout: Rollout, pattern: regex.Pattern[str] | None) -> bool:
        """Whether it is asked for; `pattern`: `compiled()`."""
        return (
            (self.first_batch is None or rollout.batch >= self.first_batch)
            and (self.last_batch is None or rollout.batch <= self.last_batch)
            and (self.prompt_id is None or rollout.prompt_id == self.prompt_id)
            and (self.statuses is None or rollout.status in self.statuses)
            and (pattern is None or _found(pattern, "".join(turn.text for turn in rollout.turns)))
        )

    def sorted(self, rollouts: Iterable[Rollout]) -> list[Rollout]:
        """In the order asked for, at most `limit`; those without the number come last."""

        def place(rollout: Rollout) -> tuple[Any, ...]:
            value = getattr(rollout, self.order)
            sign = -1 if self.descending else 1
            return (value is None, 0 if value is None else sign * value, rollout.key, rollout.episode, rollout.sample)

        return sorted(rollouts, key=place)[: self.limit]


class RolloutsReader:
    """As other processes see them, while the run goes or after."""

    def __init__(self, path: Path, files: Files = LOCAL) -> None:
        """`path`: the run's folder. Raises RunMissing if nothing was ever kept, RunDamaged."""
        self._database = Database(path / ROLLOUTS_NAME, read_only=True, layout=ROLLOUTS, files=files)

    @staticmethod
    def exists(path: Path) -> bool:
        return (path / ROLLOUTS_NAME).is_file()

    def read(self, query: Query) -> list[Rollout]:
        """Raises StoreError for a pattern that is none."""
        conditions: list[tuple[str, Sequence[Any]]] = []
        if query.first_batch is not None:
            conditions.append(("batch >= ?", (query.first_batch,)))
        if query.last_batch is not None:
            conditions.append(("batch <= ?", (query.last_batch,)))
        if query.prompt_id is not None:
            conditions.append(("prompt_id = ?", (query.prompt_id,)))
        if query.statuses is not None:
            marks = ", ".join("?" * len(query.statuses))
            conditions.append((f"status IN ({marks})", query.statuses))
        if (pattern := query.compiled()) is not None:
            self._database.function("holds", 1, lambda text: _found(pattern, text))
            conditions.append(("holds(text)", ()))
        where = " AND ".join(condition for condition, _ in conditions) or "TRUE"
        parameters = [value for _, values in conditions for value in values]
        direction = "DESC" if query.descending else "ASC"
        # The ids first: rows that are not shown need not be read whole.
        ids = self._database.rows(
            f"SELECT r.id FROM rollouts r {'JOIN texts t ON t.id = r.id' if pattern else ''} WHERE {where} "
            f"ORDER BY {query.order} {direction} NULLS LAST, epoch, position, attempt, episode, sample LIMIT ?",
            (*parameters, -1 if query.limit is None else query.limit),
        )
        found = {}
        for start in range(0, len(ids), _MOST_PARAMETERS):
            part = [id for (id,) in ids[start : start + _MOST_PARAMETERS]]
            for id, *row in self._database.rows(
                f"SELECT {_COLUMNS} FROM rollouts r JOIN texts t ON t.id = r.id JOIN details d ON d.id = r.id "
                f"WHERE r.id IN ({', '.join('?' * len(part))})",
                part,
            ):
                found[id] = _rollout(row)
        return [found[id] for (id,) in ids if id in found]

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> RolloutsReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Rollouts:
    """The writing end, held by the run's owner and used from one thread."""

    def __init__(self, path: Path, *, first_batch: int = 0, files: Files = LOCAL) -> None:
        """`path`: the run's folder. The file is made if there is none. `first_batch`: that the run goes on with; what a
        restore took back is forgotten. Raises StoreError."""
        file = path / ROLLOUTS_NAME
        if not files.is_file(file):
            Database.create(file, layout=ROLLOUTS, files=files)
        self._database = Database(file, layout=ROLLOUTS, files=files)
        self.forget(first_batch)

    def forget(self, first_batch: int) -> None:
        """What is of this batch or a later one: the run went back behind it."""
        self._database.execute("DELETE FROM rollouts WHERE batch >= ?", (first_batch,))

    def write(self, rollouts: Iterable[Rollout]) -> None:
        """All or none. One that is there already, of a group that a crash had generated again, is replaced."""
        with self._database.transaction():
            for rollout in map(_encodable, rollouts):
                self._database.execute(
                    "DELETE FROM rollouts WHERE (epoch, position, attempt, episode, sample) = (?, ?, ?, ?, ?)",
                    (*rollout.key, rollout.episode, rollout.sample),
                )
                ((id,),) = self._database.rows(
                    f"INSERT INTO rollouts ({_WRITTEN}) VALUES ({', '.join('?' * 14)}) RETURNING id",
                    (
                        rollout.batch,
                        rollout.at,
                        *rollout.key,
                        rollout.episode,
                        rollout.sample,
                        rollout.prompt_id,
                        rollout.status,
                        rollout.reason,
                        rollout.reward,
                        rollout.advantage,
                        rollout.tokens,
                        rollout.staleness,
                    ),
                )
                turns = json.dumps([(turn.by_policy, len(turn.text)) for turn in rollout.turns])
                text = "".join(turn.text for turn in rollout.turns)
                self._database.execute("INSERT INTO texts VALUES (?, ?, ?)", (id, turns, text))
                self._database.execute("INSERT INTO details VALUES (?, ?)", (id, rollout.data))

    def close(self) -> None:
        self._database.close()


def _encodable(rollout: Rollout) -> Rollout:
    """With lone surrogates, as an error's message may have, written out: they have no bytes."""

    def plain(text: str) -> str:
        return text.encode("utf-8", "backslashreplace").decode()

    return replace(
        rollout,
        prompt_id=plain(rollout.prompt_id),
        reason=None if rollout.reason is None else plain(rollout.reason),
        turns=tuple(Turn(turn.by_policy, plain(turn.text)) for turn in rollout.turns),
    )


_MOST_PARAMETERS = 500
_WRITTEN = (
    "batch, at, epoch, position, attempt, episode, sample, prompt_id, status, reason, reward, advantage, tokens, "
    "staleness"
)
_COLUMNS = f"r.id, {_WRITTEN}, turns, text, data"


def _rollout(row: Sequence[Any]) -> Rollout:
    batch, at, epoch, position, attempt, *rest, turns, text, data = row
    episode, sample, prompt_id, status, reason, reward, advantage, tokens, staleness = rest
    return Rollout(
        batch,
        at,
        (epoch, position, attempt),
        episode,
        sample,
        prompt_id,
        status,
        reason,
        reward,
        advantage,
        tokens,
        staleness,
        tuple(_turns(json.loads(turns), text)),
        data,
    )


def _turns(lengths: Sequence[tuple[bool, int]], text: str) -> Iterator[Turn]:
    begin = 0
    for by_policy, length in lengths:
        yield Turn(bool(by_policy), text[begin : begin + length])
        begin += length


def _found(pattern: regex.Pattern[str], text: str) -> bool:
    return pattern.search(text, timeout=_SEARCH_S) is not None
