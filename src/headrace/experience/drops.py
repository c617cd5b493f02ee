"""Groups that were dropped while a batch is composed, and when these are so many that more would come to nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NoReturn

from headrace.errors import HeadraceError
from headrace.experience.header import GroupHeader
from headrace.store import JournalOffset

OVERDUE = "overdue"
SURPLUS = "surplus"
EXHAUSTED = "exhausted"
HANDED_BACK = "again: "
"""Begins the reason of a drop after which the prompt is tried again; no filter's name can begin so."""
_SURPLUS_REASONS = (f"{HANDED_BACK}{SURPLUS}", f"{EXHAUSTED} ({SURPLUS})")
_LEAST_FAULTS = 8
"""Groups; fewer may come to one fault by chance."""


class NothingToTrain(HeadraceError, RuntimeError):
    """So many groups were dropped while one batch was composed that more of the same would come to nothing."""


class Drops:
    def __init__(self, most: int | None, quote: Callable[[GroupHeader, JournalOffset], str]) -> None:
        """`most`: while one batch is composed; None: any number. `quote`: a sample of a group in words, as it was
        judged, or nothing if it cannot be read."""
        self._most = most
        self._quote = quote
        self._examples: dict[str, tuple[GroupHeader, JournalOffset]] = {}
        """The last group that was dropped, by reason, and its place in the journal."""
        self._dropped: Counter[str] = Counter()
        """Since the last step."""
        self._faults: Counter[str] = Counter()
        """Of these, those that nobody wanted."""
        self._has_changed = False
        """Since they were last found to be few enough."""
        self._has_kept = False
        self.words: dict[str, str] = {}
        """What went wrong, by reason of the drop; the last time that it did."""

    def kept(self) -> None:
        """A group may be trained on."""
        self._has_kept = True

    def judged(
        self, reason: str, fault: str | None = None, example: tuple[GroupHeader, JournalOffset] | None = None
    ) -> None:
        """A finished group goes for this reason; or a `fault`, in words, keeps it from being judged. `example`: it, to
        quote from it, if there are many such."""
        if fault is not None:
            self._faults[reason] += 1
        if example is not None:
            self._examples[reason] = example

    def add(self, reason: str, words: str | None) -> None:
        """A group is gone. `words`: what went wrong."""
        if words is not None:
            self.words[reason] = words
        self._dropped[reason] += 1
        self._has_changed = True

    def by_reason(self) -> dict[str, int]:
        return dict(self._dropped)

    def clear(self) -> None:
        """Another batch is composed."""
        self._dropped.clear()
        self._faults.clear()
        self._examples.clear()

    def check(self, batch: int, taken: int, prompts_per_batch: int) -> None:
        """`taken`: groups that `batch` has so far, of `prompts_per_batch`. Raises NothingToTrain."""
        if not self._has_changed:
            return
        drops = Counter(self._dropped)
        for reason in _SURPLUS_REASONS:
            del drops[reason]
        self._check_first(drops, max(prompts_per_batch, _LEAST_FAULTS))
        if self._most is not None and drops.total() >= self._most:
            self._give_up(drops, batch, f"{taken} of {prompts_per_batch}")
        self._has_changed = False

    def _check_first(self, drops: Counter[str], worth: int) -> None:
        """Raises NothingToTrain if `worth` groups, and so all of this process, have come to one fault."""
        reason, count = next(iter(drops.most_common(1)), ("", 0))
        if self._has_kept or count < worth or self._faults[reason] < drops.total():
            return
        raise NothingToTrain(
            f"all of the first {count} groups were dropped ({reason}{self._last_fault(reason)}); mend that, and "
            f"--resume the run, or begin again with --fresh{self._example(reason)}"
        )

    def _give_up(self, drops: Counter[str], batch: int, has: str) -> NoReturn:
        reasons = ", ".join(f"{reason} {count}{self._last_fault(reason)}" for reason, count in drops.most_common())
        ((most, _),) = drops.most_common(1)
        why = (
            "mend what fails"
            if most in self.words
            else "the prompts may be too easy or too hard for the policy, or its rewards too much alike; change the "
            "data, the reward or rollout.filters"
        )
        raise NothingToTrain(
            f"{drops.total()} groups were dropped while batch {batch} was composed ({reasons}), and it has {has}: "
            f"{why}, or raise rollout.max_drops_per_batch, and --resume the run{self._example(most)}"
        )

    def _example(self, reason: str) -> str:
        """A sample of the last group that was dropped for it, if it can still be read."""
        said = self._quote(*self._examples[reason]) if reason in self._examples else ""
        return said and f". The last one had {said}"

    def _last_fault(self, reason: str) -> str:
        words = self.words.get(reason)
        return "" if words is None else f", the last one with {words!r}"
