"""The ledger's law over random histories of transitions, checkpoints and restores."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from store_helpers import checkpoint, create, finish, journal, payload, reopen

from headrace.store import IllegalTransition, RunReader

SEGMENT_BYTES = 400
# In memory where the system has it: the machine fsyncs thousands of times, and cuts no power.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
pick = st.randoms(use_true_random=False)


class LedgerMachine(RuleBasedStateMachine):
    """Drives a store and a dictionary side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.root = tempfile.TemporaryDirectory(dir=MEMORY)
        self.path = Path(self.root.name) / "run"
        self.store = create(self.path, segment_bytes=SEGMENT_BYTES)
        self.reader = RunReader(self.path)
        self.state: dict[tuple[int, int, int], str] = {}
        self.batch_of: dict[tuple[int, int, int], int] = {}
        self.position = 0
        self.number = 0
        self.branch = 0
        self.committed = [0]

    def teardown(self) -> None:
        self.reader.close()
        self.store.close()
        self.root.cleanup()

    def _in(self, state: str) -> list[tuple[int, int, int]]:
        return [key for key, at in self.state.items() if at == state]

    @rule(count=st.integers(1, 4))
    def issue(self, count: int) -> None:
        for _ in range(count):
            key = (self.position // 7, self.position % 7, 0)
            self.store.ledger.issue(key, prompt_id="p", start_version=self.number, deadline=self.number + 2)
            self.state[key] = "running"
            self.position += 1

    @precondition(lambda self: self._in("running"))
    @rule(random=pick)
    def finish_one(self, random) -> None:
        key = random.choice(self._in("running"))
        finish(self.store, key)
        self.state[key] = "ready"

    @precondition(lambda self: self._in("running"))
    @rule(random=pick)
    def journal_without_telling_the_ledger(self, random) -> None:
        """What a crash between the two writes leaves: the next restore finds the group."""
        key = random.choice(self._in("running"))
        journal(self.store, key, payload(key))
        self.restore()

    @precondition(lambda self: self._in("ready"))
    @rule(random=pick)
    def train_a_batch(self, random) -> None:
        keys = random.sample(self._in("ready"), k=random.randint(1, len(self._in("ready"))))
        self.store.ledger.train(keys, batch=self.number)
        for key in keys:
            self.state[key], self.batch_of[key] = "trained", self.number
        self.number += 1

    @precondition(lambda self: self._in("running") or self._in("ready"))
    @rule(random=pick, again=st.booleans())
    def drop(self, random, again: bool) -> None:
        key = random.choice(self._in("running") + self._in("ready"))
        self.store.ledger.drop(key, "filtered")
        self.state[key] = "dropped"
        if again:
            epoch, position, attempt = key
            self.store.ledger.issue((epoch, position, attempt + 1), prompt_id="p", start_version=0, deadline=0)
            self.state[(epoch, position, attempt + 1)] = "running"

    @precondition(lambda self: self._in("trained") or self._in("dropped"))
    @rule(random=pick)
    def settled_attempts_stay_settled(self, random) -> None:
        key = random.choice(self._in("trained") + self._in("dropped"))
        for act in (
            lambda: self.store.ledger.train([key], batch=self.number),
            lambda: self.store.ledger.drop(key, "late"),
            lambda: self.store.ledger.issue(key, prompt_id="p", start_version=0, deadline=0),
        ):
            with pytest.raises(IllegalTransition):
                act()

    @rule()
    def commit(self) -> None:
        checkpoint(self.store, self.number, branch=self.branch)
        self.committed = sorted({*self.committed, self.number})[-2:]

    @rule()
    def restore(self) -> None:
        journalled = {key for key in self._in("running") if self._is_journalled(key)}
        self.store.close()
        self.store = reopen(self.path, segment_bytes=SEGMENT_BYTES)
        restored = self.store.checkpoints.restore()
        assert restored.number == self.committed[-1]
        assert restored.branch == self.branch + 1
        self.number, self.branch = restored.number, restored.branch
        for key in self._in("trained"):
            if self.batch_of[key] >= self.number:
                self.state[key] = "ready"
        for key in journalled:
            self.state[key] = "ready"
        assert sorted(row.key for row in restored.ready) == sorted(self._in("ready"))
        assert sorted(row.key for row in restored.running) == sorted(self._in("running"))

    def _is_journalled(self, key: tuple[int, int, int]) -> bool:
        return any(payload(key) in path.read_bytes() for path in (self.path / "journal").iterdir())

    @invariant()
    def the_law_holds(self) -> None:
        counts = self.store.ledger.counts()
        counts.check()
        assert counts.issued == len(self.state)
        assert counts.running == len(self._in("running"))
        assert counts.ready == len(self._in("ready"))
        assert counts.trained == len(self._in("trained"))
        assert sum(counts.dropped.values()) == len(self._in("dropped"))
        assert self.reader.counts() == counts, "also of who has looked since the beginning"

    @invariant()
    def no_prompt_is_trained_twice(self) -> None:
        prompts = [row.key[:2] for row in self.store.ledger.attempts("trained")]
        assert len(prompts) == len(set(prompts))

    @invariant()
    def every_group_that_may_be_trained_again_is_in_the_journal(self) -> None:
        rows = self.store.ledger.attempts("ready")
        rows += [row for row in self.store.ledger.attempts("trained") if row.batch >= self.committed[0]]
        for row in rows:
            assert self.store.journal.read(row.offset) == payload(row.key)


LedgerMachine.TestCase.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
TestLaw = LedgerMachine.TestCase
