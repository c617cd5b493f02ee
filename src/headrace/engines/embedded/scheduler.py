"""Which sequences compute what in the next step. Knows slots and lengths, nothing of tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.engines.embedded.fairness import fair_order, gives_way, to_give_way
from headrace.engines.embedded.request_state import Sequence
from headrace.engines.embedded.storage import Copy, Storage, WholeSlots
from headrace.weights.version import Version

LONGEST_RUN = 16
"""Decode steps without a look at the event loop, and with one number of threads; the hop costs less than 1%."""
_STREAM_RUN = 4
_HOLD_STEPS = 8
"""Decode steps that a nearly full engine waits for more slots to come free, to prefill for them in one pass."""
_NEARLY_FULL = 16
"""Nearly full: fewer than one slot in so many is free."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens `start` .. `stop` - 1 of a sequence to prefill into its slot."""

    sequence: Sequence
    slot: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Plan:
    """In this order: `copies`, one pass over `chunks`, `late_copies`, then `steps` decode steps of the running."""

    copies: tuple[Copy, ...]
    chunks: tuple[Chunk, ...]
    late_copies: tuple[Copy, ...]
    steps: int


def length_class(length: int) -> int:
    """0 up to 64 tokens, then one more for each doubling."""
    return max((length - 1).bit_length() - 6, 0)


class Scheduler:
    """Slots 0 .. n-1 belong to the n running sequences, in order, so that a decode step reads a plain slice.

    Prefilling computes all of a sequence but its last token, which the first decode step feeds: so prefilling never
    samples, and a prompt that many requests share is computed once, and shared with the others or copied. At most one
    sequence is partly prefilled; it heads the queue, and slot n is its own. Every other queued sequence has nothing in
    the cache.

    Where storage is scarce, a sequence gets a slot only if all that run could take a part more beside it, and if there
    is none for the next token of those that run, one after another waits again, tokens kept (`gives_way`): so the
    longest always goes on.
    """

    def __init__(
        self,
        slots: int,
        prefill_tokens_per_step: int,
        *,
        by_length: bool = False,
        storage: Storage | None = None,
    ) -> None:
        """`by_length`: keep the running in the order of `length_class`, the longest first, so that attention need
        not look as far for short ones as for long ones. Takes one spare slot, number `slots`. `storage`: where not all
        slots have room for the longest sequence; there is enough for one."""
        self._by_length = by_length
        self._storage: Storage = storage or WholeSlots()
        self._slots = slots
        self._prefill_tokens = prefill_tokens_per_step
        self._queue: deque[Sequence] = deque()
        self._held_steps = 0
        self._several_clients = False
        self.running: list[Sequence] = []
        self.admitting = True
        """False: sequences that never had a slot stay in the queue (`drain`)."""
        self.gave_way = 0
        """Times that a sequence that ran waited again, since there was no room for all."""

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def in_flight(self) -> list[Sequence]:
        """Those that run, are partly prefilled, or were interrupted."""
        return self.running + [sequence for sequence in self._queue if sequence.in_flight]

    @property
    def partial(self) -> tuple[int, Sequence] | None:
        """(slot, sequence) of the one that is partly prefilled."""
        if self._queue and self._queue[0].cached:
            return len(self.running), self._queue[0]
        return None

    @property
    def has_free_slot(self) -> bool:
        return len(self.running) < self._slots

    def add(self, sequence: Sequence) -> None:
        self._queue.append(sequence)
        self._several_clients |= sequence.client != ()

    def remove_waiting(self, sequence: Sequence) -> bool:
        """False if it does not wait."""
        if sequence not in self._queue:
            return False
        if sequence.cached:
            self.restart_partial()
        self._queue.remove(sequence)
        return True

    def can_progress(self, version: Version) -> bool:
        """Whether `schedule` would find anything to do."""
        return bool(self.running) or any(self._may_start(sequence, version) for sequence in self._queue)

    def schedule(self, version: Version) -> Plan:
        """Fill the free slots, then decode: first come first served within a client, evenly among several. The caller
        carries out the whole plan."""
        before = len(self.running)
        moves = [*self._make_room(version), *self._go_on()]
        if not self._queue or not self.has_free_slot:
            return Plan(tuple(moves), (), (), self._backed(self._run_length(prefilling=False)))
        if len(self.running) == before and self._holds_back():
            steps = self._backed(min(self._run_length(prefilling=False), _HOLD_STEPS - self._held_steps))
            self._held_steps += steps
            return Plan((), (), (), steps)
        self._held_steps = 0
        intake = _Intake(self, version)
        prefilling = intake.fill()
        return Plan(
            (*moves, *intake.copies),
            tuple(intake.chunks),
            tuple(intake.late_copies),
            self._backed(self._run_length(prefilling)),
        )

    def _go_on(self) -> list[Copy]:
        """Have room for the next token of all that run."""
        storage, moves = self._storage, list[Copy]()
        while sum(storage.lacks(slot, one.length) for slot, one in enumerate(self.running)) > storage.free:
            if self.partial is not None:
                self.restart_partial()
                continue
            slot = gives_way(self.running)
            sequence = self.running[slot]
            moves += self.retire([slot])
            self._wait_again([sequence])
            self.gave_way += 1
        for slot, sequence in enumerate(self.running):
            storage.extend(slot, sequence.length)
        return moves

    def _backed(self, steps: int) -> int:
        """At most so many: as many as there is room for, which those that run have from now on."""
        storage, running = self._storage, self.running
        while steps > 1 and storage.free < sum(
            storage.lacks(slot, one.length + steps - 1) for slot, one in enumerate(running)
        ):
            steps -= 1
        for slot, sequence in enumerate(running):
            storage.extend(slot, sequence.length + steps - 1)
        return steps

    def _wait_again(self, sequences: Iterable[Sequence]) -> None:
        """Those whose slots were others': they head the queue, the last of them first."""
        for sequence in sequences:
            sequence.drop_cache()
            self._queue.appendleft(sequence)

    def retire(self, slots: Iterable[int]) -> list[Copy]:
        """Take the sequences of these slots out; others move into the holes. To be done in order."""
        holes = frozenset(slots)
        before, partial = len(self.running), self.partial
        for slot in holes:
            self._storage.release(slot)
        moves = self._settle(holes)
        if holes and partial is not None:
            moves += self._storage.move(before, len(self.running), partial[1].cached)
        return moves

    def arrange(self) -> list[Copy]:
        """Bring the running into the order of their length classes again, if `by_length`. To be done in order."""
        return self._settle(frozenset()) if self._by_length else []

    def _settle(self, gone: frozenset[int]) -> list[Copy]:
        """Let slots 0 .. n-1 hold those of the running that are not gone, the longer classes first.

        Everyone who is in a slot of another class moves once, into a free slot while there is one; what then goes
        round in circles goes by the spare slot behind the last.
        """
        rows = {slot: sequence for slot, sequence in enumerate(self.running) if slot not in gone}
        classes = {slot: length_class(row.length) if self._by_length else 0 for slot, row in rows.items()}
        wanted = sorted(classes.values(), reverse=True)
        astray: dict[int, list[int]] = {}
        for slot, level in classes.items():
            if slot >= len(wanted) or wanted[slot] != level:
                astray.setdefault(level, []).append(slot)
        free = [slot for slot in range(len(wanted)) if slot not in rows]
        moves: list[Copy] = []

        def move(source: int, target: int) -> None:
            moves.extend(self._storage.move(source, target, rows[source].cached))
            rows[target] = rows.pop(source)

        def fill() -> None:
            while free:
                slot = free.pop()
                if waiting := astray.get(wanted[slot]):
                    source = waiting.pop()
                    move(source, slot)
                    if source < len(wanted):
                        free.append(source)

        fill()
        while astray := {level: slots for level, slots in astray.items() if slots}:
            level, slots = next(iter(astray.items()))
            hole = slots.pop()
            move(hole, self._slots)
            astray[level].append(self._slots)
            free.append(hole)
            fill()
        self.running[:] = [rows[slot] for slot in range(len(wanted))]
        return moves

    def interrupt(self) -> list[Sequence]:
        """Drop every key and value: who ran goes back to the head of the queue, tokens kept. Returns those."""
        interrupted = self.in_flight
        self.restart_partial()
        for slot in range(len(self.running)):
            self._storage.release(slot)
        for sequence in interrupted:
            sequence.drop_cache()
        self._queue.extendleft(reversed(self.running))
        self.running.clear()
        return interrupted

    def restart_partial(self) -> None:
        """Drop what is partly prefilled: it would be finished under other weights than it was begun."""
        if (partial := self.partial) is not None:
            self._storage.release(partial[0], unseen=True)
            partial[1].drop_cache()

    def _make_room(self, version: Version) -> list[Copy]:
        """If several clients want slots, and there is none, or no room: have some sequences wait again, tokens kept, so
        that each client has one. Then bring those that wait into their order."""
        if not self._several_clients or not self._queue:
            return []
        lacking = self._lacking(version)
        if (begun := self.partial) is not None:
            lacking = self._lacking(version) if self._makes_room(begun[1], lacking) else []
        slots = to_give_way(lacking, self.running)
        gone = [self.running[slot] for slot in slots]
        moves = self.retire(slots)
        self._wait_again(gone)
        if self.has_free_slot:
            partial = [self._queue.popleft()] if self._queue[0].cached else []
            self._queue = deque([*partial, *fair_order(self._queue, self.running)] if self._queue else partial)
        return moves

    def _lacking(self, version: Version) -> list[Sequence]:
        """Those that wait, and may start, and find no slot, or no room beside those that run or are about to."""
        waiting = [one for one in self._queue if not one.cached and self._may_start(one, version)]
        return [one for one in waiting if not self._has_room_for(one)] if self.has_free_slot else waiting

    def _makes_room(self, partial: Sequence, lacking: list[Sequence]) -> bool:
        """Whether what is partly prefilled waits again, since somebody is to make room for another client, whose turn
        is before its own. Otherwise it goes on first, and whoever made room now would do so too early."""
        gives = to_give_way(lacking, [*self.running, partial])
        if not gives or fair_order([partial, *lacking], self.running)[0] is partial:
            return False
        self.restart_partial()
        return True

    def _has_room_for(self, sequence: Sequence, shared: int = 0) -> bool:
        """Whether it has its part of the storage, or may take it, as the next that runs: next but one, where another is
        partly prefilled. `shared`: tokens that another has too."""
        goes_first = 0 if sequence.cached or self.partial is None else 1
        slot = None if goes_first else len(self.running)
        lacks = self._storage.lacks(slot, sequence.length, shared)
        return not lacks or lacks + len(self.running) + goes_first <= self._storage.free

    def _may_start(self, sequence: Sequence, version: Version) -> bool:
        if not self.admitting and not sequence.in_flight:
            return False
        floor = sequence.request.min_version
        return floor is None or version.serves(floor)

    def _holds_back(self) -> bool:
        free = self._slots - len(self.running)
        begun = self._queue[0].in_flight
        return free < self._slots // _NEARLY_FULL and self._held_steps < _HOLD_STEPS and not begun

    def _run_length(self, prefilling: bool) -> int:
        if not self.running:
            return 0
        longest = 1 if prefilling else LONGEST_RUN
        for sequence in self.running:
            longest = min(longest, sequence.room)
            if sequence.request.stream and sequence.request.soon:
                first = sequence.length == sequence.prompt_length
                longest = min(longest, 1 if first else _STREAM_RUN)
        return longest


class _Intake:
    """One filling of the free slots."""

    def __init__(self, scheduler: Scheduler, version: Version) -> None:
        self._scheduler = scheduler
        self._version = version
        self._budget = scheduler._prefill_tokens
        self.copies: list[Copy] = []
        self.chunks: list[Chunk] = []
        self.late_copies: list[Copy] = []
        self._donors: dict[bytes, int] = {}
        """Slots whose prompt was computed by this version before this pass, by prompt."""
        self._fresh: dict[bytes, int] = {}
        """Slots whose prompt is computed in this pass."""
        for slot, sequence in enumerate(scheduler.running):
            if sequence.kv_version == version:
                self._donors.setdefault(sequence.prompt_key, slot)

    def fill(self) -> bool:
        """True if there is more to prefill in the next step."""
        scheduler, queue = self._scheduler, self._scheduler._queue
        passed_over: list[Sequence] = []
        more = False
        while queue and scheduler.has_free_slot:
            sequence = queue.popleft()
            if not scheduler._may_start(sequence, self._version):
                passed_over.append(sequence)
            elif self._awaits_sibling(sequence):
                passed_over.append(sequence)
                more = True
            elif not scheduler._has_room_for(sequence, self._shared_tokens(sequence)):
                queue.appendleft(sequence)
                break
            elif not self._place(sequence):
                more = True
                if sequence.cached:
                    passed_over.insert(0, sequence)
                else:
                    queue.appendleft(sequence)
                break
        queue.extendleft(reversed(passed_over))
        return more

    def _awaits_sibling(self, sequence: Sequence) -> bool:
        """True if this pass computes its prompt for another, and it has more than that to compute."""
        return (
            sequence.cached == 0
            and sequence.prompt_key in self._fresh
            and sequence.prompt_key not in self._donors
            and sequence.length > sequence.prompt_length
        )

    def _shared(self, sequence: Sequence) -> int | None:
        """The slot whose prompt is this one's too, and computed before it is needed."""
        if sequence.cached:
            return None
        return self._donors.get(sequence.prompt_key, self._fresh.get(sequence.prompt_key))

    def _shared_tokens(self, sequence: Sequence) -> int:
        return 0 if self._shared(sequence) is None else sequence.prompt_length - 1

    def _place(self, sequence: Sequence) -> bool:
        """Give it the next slot, and what prefilling the budget allows. False if some of it is left to do."""
        storage, slot = self._scheduler._storage, len(self._scheduler.running)
        target, shared = sequence.length - 1, sequence.prompt_length - 1
        donor = self._shared(sequence)
        start = sequence.cached if donor is None else shared
        if start < target and self._budget == 0:
            return False
        if donor is not None and shared:
            is_late = sequence.prompt_key not in self._donors
            (self.late_copies if is_late else self.copies).extend(storage.share(donor, slot, shared))
        storage.extend(slot, sequence.length)
        stop = min(target, start + self._budget)
        if stop > start:
            self.chunks.append(Chunk(sequence, slot, start, stop))
            self._budget -= stop - start
        sequence.cached, sequence.kv_version, sequence.in_flight = stop, self._version, True
        if stop < target:
            return False
        self._scheduler.running.append(sequence)
        self._fresh.setdefault(sequence.prompt_key, slot)
        return True
