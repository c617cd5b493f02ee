"""Invariants of docs/design.md, broken on purpose: each a change to the house that looks like code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planted_bugs import Plant

from headrace.experience.schedule import Schedule
from headrace.experience.shared_refs import SharedRefs
from headrace.roles.actors.batch_stats import StalenessRule
from headrace.store import checkpoints
from headrace.store.checkpoints import Checkpoints
from headrace.store.journal_writer import JournalWriter
from headrace.store.ledger import Ledger
from headrace.store.media.files import Files


def a_drop_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A dropped group leaves the schedule and the table, and the ledger does not hear of it."""
    patch.setattr(Ledger, "drop", lambda self, key, reason: None)


def the_gate_is_a_group_too_wide(patch: pytest.MonkeyPatch) -> None:
    """i <= (v + eta + 1) B, where i < (v + eta + 1) B is meant."""
    shut_by = Schedule.shut_by

    def wider(self: Schedule, version: int, *, has_bytes: bool = True) -> Any:
        found = shut_by(self, version, has_bytes=has_bytes)
        place = self.batch * self.prompts_per_batch + len(self._taken) + self.live
        due = (version + self.max_staleness + 1) * self.prompts_per_batch + self.surplus
        open_still = version + self.max_staleness >= self.first_open and self.live < self.ahead
        return None if found == "staleness" and place == due and open_still else found

    patch.setattr(Schedule, "shut_by", wider)


def the_mask_is_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """A token one batch staler than the bound enters the loss."""
    trained = StalenessRule.trained

    def later(self: StalenessRule, header: Any, batch: int) -> Any:
        return trained(replace(self, bound=self.bound + 1), header, batch)

    patch.setattr(StalenessRule, "trained", later)


def refs_of_rows_that_left_are_kept(patch: pytest.MonkeyPatch) -> None:
    """A group leaves the table, and its columns stay."""
    patch.setattr(SharedRefs, "leave", lambda self, key: None)


def a_receipt_before_the_record_is_durable(patch: pytest.MonkeyPatch) -> None:
    """The journal says that it is synced, and did not."""

    def claimed(self: JournalWriter) -> None:
        with self._lock:
            self._synced = self._end

    patch.setattr(JournalWriter, "sync", claimed)


def a_checkpoint_is_named_before_its_files_are_durable(patch: pytest.MonkeyPatch) -> None:
    """Checksummed, renamed and committed, but not synced."""
    seal = checkpoints.seal

    class Lazy:
        def __init__(self, files: Files) -> None:
            self._files = files

        def sync(self, path: Any) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            return getattr(self._files, name)

    def unsynced(folder: Any, number: int, store: Any, known: Any) -> Any:
        return seal(folder, number, Lazy(store), known)  # type: ignore[arg-type]

    patch.setattr(checkpoints, "seal", unsynced)


def what_was_trained_after_the_commit_stays_trained(patch: pytest.MonkeyPatch) -> None:
    """A restore takes the model back, and leaves out what it had learned since."""
    forked = Checkpoints._forked

    def kept(self: Checkpoints, commit: Any) -> Any:
        trained = [(row.batch, row.key) for row in self._ledger.attempts("trained")]
        found = forked(self, commit)
        for batch, key in trained:
            if batch is not None and batch >= commit.number:
                self._ledger.train([key], batch=batch)
        return found

    patch.setattr(Checkpoints, "_forked", kept)


BROKEN: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        a_drop_is_not_counted,
        the_gate_is_a_group_too_wide,
        the_mask_is_off_by_one,
        refs_of_rows_that_left_are_kept,
        a_receipt_before_the_record_is_durable,
        a_checkpoint_is_named_before_its_files_are_durable,
        what_was_trained_after_the_commit_stays_trained,
    )
}
