"""A real process, killed at random moments while it issues, journals, trains and checkpoints; then taken over."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from store_helpers import reopen
from store_kill_child import SEGMENT_BYTES, Key

ROUNDS = 6


def run_and_kill(path: Path, seed: int, lines: int, delay: float) -> list[list[str]]:
    """What the child said, once it has said at least `lines` lines and was killed `delay` seconds later."""
    with subprocess.Popen(
        [sys.executable, "store_kill_child.py", str(path), str(seed)],
        cwd=Path(__file__).parents[1] / "helpers",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        said = [child.stdout.readline() for _ in range(lines)]
        time.sleep(delay)
        child.kill()
        said += child.stdout.readlines()
        assert child.wait() == -9, child.stderr.read()
    return [line.split() for line in said]


def key_of(words: list[str]) -> Key:
    epoch, position, attempt = map(int, words)
    return epoch, position, attempt


class Account:
    """All that the children said, over their lives; raises as soon as two things they said do not go together."""

    def __init__(self) -> None:
        self.generated: set[Key] = set()
        self.journalled: set[Key] = set()
        self.dropped: set[Key] = set()
        self.trained: dict[tuple[int, int], int] = {}
        """Batch of each prompt that is trained and not taken back."""
        self.committed = 0

    def hear(self, words: list[str]) -> None:
        match words:
            case ["version", number]:
                assert int(number) >= self.committed
                self.trained = {prompt: batch for prompt, batch in self.trained.items() if batch < int(number)}
            case ["generate", *key]:
                assert key_of(key) not in self.journalled, "a finished group is generated again"
                self.generated.add(key_of(key))
            case ["journalled", *key]:
                self.journalled.add(key_of(key))
            case ["dropped", *key]:
                self.dropped.add(key_of(key))
            case ["trained", batch, *keys]:
                for start in range(0, len(keys), 3):
                    key = key_of(keys[start : start + 3])
                    assert key[:2] not in self.trained, "a prompt is trained twice in an epoch"
                    assert key not in self.dropped
                    self.trained[key[:2]] = int(batch)
            case ["committed", number]:
                self.committed = int(number)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_and_nothing_is_trained_twice(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "run"
    chance = random.Random(seed)
    account = Account()
    for round_ in range(ROUNDS):
        for words in run_and_kill(path, seed * 100 + round_, chance.randint(50, 400), chance.random() * 0.02):
            account.hear(words)
        store = reopen(path, segment_bytes=SEGMENT_BYTES)
        rows = {
            row.key: (state, row)
            for state in ("running", "ready", "trained", "dropped")
            for row in store.ledger.attempts(state)
        }
        store.ledger.counts().check()
        assert account.generated <= set(rows)
        assert {key for key in account.journalled if rows[key][0] == "running"} == set()
        assert {key for key in account.dropped if rows[key][0] != "dropped"} == set()
        _no_gap(set(rows))

        restored = store.checkpoints.restore()
        assert restored.number >= account.committed
        if restored.path is not None:
            assert restored.state == {"number": restored.number}
            for name in ("a", "b", "c"):
                assert (restored.path / name).read_bytes() == bytes([restored.number % 256]) * 20_000
        for row in restored.ready:
            assert row.offset is not None
            assert store.journal.read(row.offset).startswith(repr(row.key).encode())
        trained = store.ledger.attempts("trained")
        assert {row.batch for row in trained} == set(range(restored.number))
        known = {key: batch for key, batch in account.trained.items() if batch < restored.number}
        assert known.items() <= {row.key[:2]: row.batch for row in trained}.items()
        assert [row.number for row in store.metrics.read("batch")] == list(range(1, restored.number + 1))
        store.close()
    assert account.committed > 0


def _no_gap(keys: set[Key]) -> None:
    """Every prompt up to the frontier has been issued."""
    last = max(key[:2] for key in keys)
    expected = {(epoch, position) for epoch in range(last[0] + 1) for position in range(31)}
    assert {key[:2] for key in keys} == {prompt for prompt in expected if prompt <= last}
