"""The scheduler against a cache made of lists: what a decode step reads is what it should."""

from __future__ import annotations

from typing import Any

import numpy as np
from engines_helpers import request
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engines.embedded.pages import PageTable
from headrace.engines.embedded.request_state import Sequence
from headrace.engines.embedded.scheduler import Plan, Scheduler, length_class
from headrace.engines.embedded.storage import Copy
from headrace.engines.protocol import FinishReason
from headrace.weights.version import Version

Entry = tuple[int, int, tuple[int, ...]]
"""What a key depends on: version, position, and the tokens up to there."""


class WholeMemory:
    """A list of entries for each slot."""

    def __init__(self, slots: int) -> None:
        self._slots: list[list[Entry]] = [[] for _ in range(slots)]

    def copy(self, one: Copy) -> None:
        self._slots[one.target] = self._slots[one.source][: one.length]

    def read(self, slot: int) -> list[Entry]:
        return self._slots[slot]

    def write(self, slot: int, start: int, entries: list[Entry]) -> None:
        assert len(self._slots[slot]) >= start
        self._slots[slot][start:] = entries


class PagedMemory:
    """A list of entries for each page; whoever writes to one has it alone."""

    def __init__(self, pages: PageTable, count: int) -> None:
        self._table = pages
        self._pages: list[list[Entry]] = [[] for _ in range(count)]

    def copy(self, one: Copy) -> None:
        self._pages[one.target] = self._pages[one.source][: one.length]

    def read(self, slot: int) -> list[Entry]:
        return [entry for page in self._table.slots[slot] for entry in self._pages[page]]

    def write(self, slot: int, start: int, entries: list[Entry]) -> None:
        size, users = self._table.page_tokens, [page for pages in self._table.slots for page in pages]
        for i, entry in enumerate(entries, start):
            page = self._table.slots[slot][i // size]
            assert users.count(page) == 1
            assert len(self._pages[page]) >= i % size or i == start
            self._pages[page][i % size :] = [entry]

    def check(self, slots_in_use: int) -> None:
        """No page is lost, and none is had by a slot that nobody has."""
        had = {page for pages in self._table.slots for page in pages}
        assert len(had) + self._table.free == len(self._pages)
        assert not any(self._table.slots[slots_in_use:])


class PretendEngine:
    """Carries out plans; token n of a response is n, so that prefixes are told apart by the prompt."""

    def __init__(
        self, slots: int, prefill_tokens: int, *, by_length: bool = False, pages: int = 0, page_tokens: int = 4
    ) -> None:
        """`pages`: that the slots share; 0: each has room of its own."""
        table = PageTable(slots, pages, page_tokens) if pages else None
        self.scheduler = Scheduler(slots, prefill_tokens, by_length=by_length, storage=table)
        self.prefill_tokens = prefill_tokens
        self.by_length = by_length
        self.slots = slots
        self.memory = WholeMemory(slots + by_length) if table is None else PagedMemory(table, pages)
        self.version = Version(0, 0)
        self.prefilled = 0
        self.exact = True
        """False once a swap kept old keys."""

    def step(self) -> Plan:
        plan = self.scheduler.schedule(self.version)
        self.copy(plan.copies)
        assert sum(c.stop - c.start for c in plan.chunks) <= self.prefill_tokens
        for chunk in plan.chunks:
            entries = [self.entry(chunk.sequence, i) for i in range(chunk.start, chunk.stop)]
            self.memory.write(chunk.slot, chunk.start, entries)
            self.prefilled += chunk.stop - chunk.start
        self.copy(plan.late_copies)
        assert len(self.scheduler.running) <= self.slots
        if plan.steps:
            self.decode(plan.steps)
        if isinstance(self.memory, PagedMemory):
            self.memory.check(len(self.scheduler.running) + (self.scheduler.partial is not None))
        return plan

    def decode(self, steps: int) -> None:
        self.copy(self.scheduler.arrange())
        if self.by_length:
            classes = [length_class(sequence.length) for sequence in self.scheduler.running]
            assert classes == sorted(classes, reverse=True)
        ended = []
        for i, sequence in enumerate(self.scheduler.running):
            cached = self.memory.read(i)[: sequence.length - 1]
            assert len(cached) == sequence.length - 1 == sequence.cached
            for position, entry in enumerate(cached):
                wanted = self.entry(sequence, position)
                assert entry[1:] == wanted[1:]
                assert not self.exact or entry[0] == wanted[0]
            assert steps <= sequence.room
            floor = sequence.request.min_version
            assert floor is None or floor <= self.version
            done, before = sequence.length - sequence.prompt_length, sequence.length - 1
            new = np.arange(done, done + steps)
            sequence.append(new, np.zeros(steps, np.float32), self.version, stopped=False)
            self.memory.write(i, before, [self.entry(sequence, p) for p in range(before, sequence.length - 1)])
            if sequence.is_finished:
                ended.append(i)
        self.copy(self.scheduler.retire(ended))

    def copy(self, copies: Any) -> None:
        for one in copies:
            assert isinstance(one, Copy)
            self.memory.copy(one)

    def entry(self, sequence: Sequence, position: int) -> Entry:
        return self.version.number, position, tuple(sequence.token_ids(0, position + 1).tolist())

    def abort(self, sequence: Sequence) -> None:
        sequence.finish_reason = FinishReason.ABORT
        if not self.scheduler.remove_waiting(sequence):
            self.copy(self.scheduler.retire([self.scheduler.running.index(sequence)]))

    def swap(self, keep: bool) -> None:
        self.version = Version(0, self.version.number + 1)
        if keep:
            self.exact = False
            self.scheduler.restart_partial()
        else:
            self.scheduler.interrupt()


_PROMPT_LENGTHS = st.one_of(st.integers(1, 12), st.sampled_from([62, 64, 65, 127, 129]))
_CLIENTS = st.sampled_from([(), ("a", "1"), ("a", "2"), ("b", "3")])
_ARRIVAL = st.tuples(st.integers(0, 3), _PROMPT_LENGTHS, st.integers(1, 9), st.integers(0, 2), _CLIENTS)
_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.lists(_ARRIVAL, min_size=1, max_size=5)),
        st.tuples(st.just("step"), st.integers(1, 4)),
        st.tuples(st.just("abort"), st.integers(0, 40)),
        st.tuples(st.just("swap"), st.booleans()),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(
    slots=st.integers(1, 5),
    prefill_tokens=st.integers(1, 150),
    kept=st.one_of(
        st.fixed_dictionaries({"by_length": st.booleans()}),
        st.tuples(st.integers(1, 9), st.integers(0, 60)).map(
            # Enough for one of the longest sequences, 129 + 9 tokens, and some more.
            lambda size: {"page_tokens": size[0], "pages": -(-138 // size[0]) + size[1]}
        ),
    ),
    events=_EVENTS,
)
def test_every_step_reads_the_keys_of_its_own_tokens(
    slots: int, prefill_tokens: int, kept: dict[str, Any], events: list[Any]
) -> None:
    engine = PretendEngine(slots, prefill_tokens, **kept)
    everyone: list[Sequence] = []
    for kind, detail in events:
        if kind == "arrive":
            for token, prompt_length, room, ahead, client in detail:
                floor = Version(0, engine.version.number + ahead) if ahead else None
                tokens = [token] * prompt_length
                one = request(str(len(everyone)), tokens, room, min_version=floor, client=client)
                everyone.append(Sequence(one, 256))
                engine.scheduler.add(everyone[-1])
        elif kind == "step":
            for _ in range(detail):
                engine.step()
        elif kind == "abort" and detail < len(everyone) and not everyone[detail].is_finished:
            engine.abort(everyone[detail])
        elif kind == "swap":
            engine.swap(detail)
    engine.version = Version(0, 1000)
    engine.scheduler.interrupt()
    engine.exact = True
    for _ in range(5000):
        if not engine.scheduler.can_progress(engine.version):
            break
        engine.step()
    assert all(sequence.is_finished for sequence in everyone)
    assert engine.scheduler.waiting == len(engine.scheduler.running) == 0


def test_only_those_whose_length_class_is_out_of_order_move() -> None:
    engine = PretendEngine(4, 1000, by_length=True)
    for i, length in enumerate([90, 90, 60, 10]):
        engine.scheduler.add(Sequence(request(str(i), [i] * length, 40), 256))
    engine.step()
    assert engine.scheduler.arrange() == []
    first = engine.scheduler.running[0]
    # 60 grows past 64: its class is that of the two in front of it, so it stays.
    engine.step()
    assert [length_class(s.length) for s in engine.scheduler.running] == [1, 1, 1, 0]
    # The first leaves its slot to the last of its class.
    engine.abort(first)
    assert [s.prompt_length for s in engine.scheduler.running] == [60, 90, 10]


def test_a_group_costs_one_prompt_and_a_recomputation_one_prompt_and_the_tails() -> None:
    engine = PretendEngine(8, 1000)
    for i in range(4):
        engine.scheduler.add(Sequence(request(str(i), [7] * 10, 20, stream=True), 64))
    engine.step()
    assert engine.prefilled == 9
    engine.step()  # 1 + 4 tokens sampled each
    engine.swap(keep=False)
    engine.step()
    engine.step()
    # The first: 10 + 5 - 1. The others: their last prompt token and 4 of 5 sampled.
    assert engine.prefilled == 9 + 14 + 3 * 5
    assert len(engine.scheduler.running) == 4


def test_what_is_partly_prefilled_gives_its_pages_back_where_it_stops() -> None:
    engine = PretendEngine(4, 5, pages=20)
    assert isinstance(engine.memory, PagedMemory)
    for stop in (engine.abort, lambda long: engine.scheduler.restart_partial()):
        long = Sequence(request("long", [1] * 40, 10), 64)
        engine.scheduler.add(long)
        engine.step()
        assert engine.scheduler.partial == (0, long)
        stop(long)
        engine.memory.check(0)


def test_where_pages_run_out_what_is_partly_prefilled_makes_room_first() -> None:
    """Of 13 pages of 4 tokens, two short sequences grow to 12, while a prompt of 9 is computed."""
    engine = PretendEngine(4, 2, pages=13)
    short = [Sequence(request(str(i), [i], 22), 64) for i in range(2)]
    long = Sequence(request("long", [9] * 33, 2), 64)
    for one in [*short, long]:
        engine.scheduler.add(one)
    while not long.is_finished:
        engine.step()
    assert engine.prefilled > 32, "it began again"
    assert engine.scheduler.gave_way == 0, "nobody who ran"
    assert all(one.is_finished for one in short)


def test_what_waits_for_newer_weights_does_not_hold_up_others() -> None:
    engine = PretendEngine(1, 100)
    engine.scheduler.add(Sequence(request("new", [1, 2], 3, min_version=Version(0, 1)), 64))
    engine.scheduler.add(Sequence(request("old", [1, 2], 3), 64))
    engine.step()
    assert not engine.scheduler.can_progress(engine.version)
    engine.swap(keep=False)
    engine.step()
    assert engine.scheduler.waiting == 0
    assert not engine.scheduler.can_progress(engine.version)


def test_drain_admits_nobody_new_but_finishes_what_it_began() -> None:
    engine = PretendEngine(2, 4)
    engine.scheduler.add(Sequence(request("begun", [1] * 10, 3), 64))
    engine.scheduler.add(Sequence(request("new", [2] * 3, 3), 64))
    engine.step()  # 4 of 9 prompt tokens
    engine.scheduler.admitting = False
    while engine.scheduler.can_progress(engine.version):
        engine.step()
    assert not engine.scheduler.in_flight
    assert engine.scheduler.waiting == 1


def test_a_nearly_full_engine_waits_a_little_to_prefill_for_several_at_once() -> None:
    engine = PretendEngine(48, 1000)
    for i in range(48):
        rooms = {0: 3, 1: 5, 2: 5}
        engine.scheduler.add(Sequence(request(str(i), [i] * 4, rooms.get(i, 60)), 64))
    engine.step()  # 3 steps: the first one ends
    for i in range(2):
        engine.scheduler.add(Sequence(request(f"late {i}", [50 + i] * 4, 60), 128))
    prefilled = engine.prefilled
    assert engine.step().steps == 2  # one slot is free, three are worth a pass: held until more end
    assert engine.prefilled == prefilled
    assert len(engine.step().chunks) == 2
    engine.abort(engine.scheduler.running[0])
    engine.abort(engine.scheduler.running[0])
    engine.scheduler.add(Sequence(request("last", [60] * 4, 60), 128))
    held = 0
    while engine.scheduler.waiting:
        plan = engine.step()
        held += plan.steps if not plan.chunks else 0
    assert held == 0  # three were free again


def test_the_wait_of_a_nearly_full_engine_ends_after_eight_steps() -> None:
    engine = PretendEngine(32, 1000)
    for i in range(32):
        engine.scheduler.add(Sequence(request(str(i), [i] * 4, 3 if i == 0 else 50, stream=i == 1), 64))
    engine.step()
    engine.step()
    engine.scheduler.add(Sequence(request("late", [50] * 4, 60), 128))
    held = 0
    while engine.scheduler.waiting:
        plan = engine.step()
        held += 0 if plan.chunks else plan.steps
    assert held == 8


def partly_prefilled(client: tuple[str, ...], room: int = 2) -> tuple[PretendEngine, list[Sequence], Sequence]:
    """Two of client a run; a prompt of 62 tokens, 16 pages, is prefilled by five at a time."""
    engine = PretendEngine(5, 5, pages=36)
    running = [Sequence(request(str(i), [i], 40, client=("a", "1")), 256) for i in range(2)]
    for one in running:
        engine.scheduler.add(one)
    engine.step()
    long = Sequence(request("long", [9] * 62, room, client=client), 256)
    engine.scheduler.add(long)
    engine.step()
    assert engine.scheduler.partial == (2, long)
    return engine, running, long


def test_what_is_partly_prefilled_begins_again_where_others_give_way_to_another_client() -> None:
    """Its pages are at the slot of whoever heads the queue, and those that gave way head it."""
    engine, running, long = partly_prefilled(("a", "2"))
    other = Sequence(request("other", [8] * 129, 2, client=("b", "3")), 256)
    engine.scheduler.add(other)
    engine.step()
    assert len(engine.scheduler.running) < 2, "one gave way"
    while not all(one.is_finished for one in (*running, long, other)):
        engine.step()


def test_the_pages_of_what_is_partly_prefilled_are_no_room_for_another_client() -> None:
    """As many as it needs: it goes first, as its client has nothing, and nobody else has to give way for it."""
    engine, running, long = partly_prefilled(("a", "2"))
    other = Sequence(request("other", [8] * 61, 2, client=("b", "3")), 256)
    engine.scheduler.add(other)
    engine.step()
    assert engine.scheduler.partial == (2, other)
    while not all(one.is_finished for one in (*running, long, other)):
        engine.step()


def test_nobody_gives_way_to_a_client_that_has_begun() -> None:
    """It is being prefilled, whatever else of the others finds no room."""
    engine, running, long = partly_prefilled(("b", "2"))
    for i in range(3):
        engine.scheduler.add(Sequence(request(f"more {i}", [7] * 129, 2, client=("a", str(i))), 256))
    for _ in range(9):
        before = long.cached
        engine.step()
        assert long.cached == before + 5
        assert engine.scheduler.running == running


def test_nobody_gives_way_before_those_who_wait_for_what_is_partly_prefilled_could_begin() -> None:
    engine, running, long = partly_prefilled(("b", "2"), room=20)
    other = Sequence(request("other", [8] * 100, 2, client=("c", "3")), 256)
    engine.scheduler.add(other)
    while long not in engine.scheduler.running:
        assert engine.scheduler.running == running
        engine.step()
    engine.step()
    assert len([one for one in engine.scheduler.running if one in running]) < 2
    while not other.is_finished:
        engine.step()
