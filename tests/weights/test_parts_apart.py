"""Parts of a version from those who do not see its memory: sent, converted, and written by one that does."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.weights import parts_apart
from headrace.weights.manifest import build_manifest
from headrace.weights.parts import OpenSlot, Part, PartWriter, require_all
from headrace.weights.parts_apart import Came, who_writes
from headrace.weights.plane import WeightError
from headrace.weights.seen import CPU, Seen
from headrace.weights.shm import ShmPublisher, ShmReceiver
from headrace.weights.version import Version

OUTLINE = {
    "w": torch.empty(7, 5, dtype=torch.bfloat16, device="meta"),
    "odd": torch.empty(3, dtype=torch.bfloat16, device="meta"),
    "n": torch.empty((), device="meta"),
}
MANIFEST = build_manifest(Version(0, 1), OUTLINE, checksums=False)


def at(*memories: str) -> list[Seen]:
    """Of each rank, on the machine of that name or number."""
    return [Seen(memory, "4", rank, CPU) for rank, memory in enumerate(memories)]


class Queues:
    """`Peers` that are threads."""

    def __init__(self, rank: int, seen: Sequence[Seen], lines: dict[tuple[int, int], Queue[torch.Tensor]]) -> None:
        self.rank = rank
        self._seen = seen
        self._lines = lines

    def sees(self) -> Sequence[Seen]:
        return self._seen

    def send(self, tensor: torch.Tensor, rank: int) -> None:
        self._lines[self.rank, rank].put(tensor.clone())

    def receive(self, tensor: torch.Tensor, rank: int) -> None:
        sent = self._lines[rank, self.rank].get(timeout=20)
        assert sent.shape == tensor.shape
        tensor.copy_(sent)


def written(opened: OpenSlot, seen: list[Seen], parts: Sequence[Sequence[Part]]) -> list[int | Exception]:
    """By each rank, or what it raised; all have ended."""
    size = len(seen)
    lines: dict[tuple[int, int], Queue[torch.Tensor]] = {
        (one, other): Queue() for one in range(size) for other in range(size)
    }
    found: list[int | Exception] = [0] * size

    def write(rank: int) -> None:
        try:
            found[rank] = PartWriter(Queues(rank, seen, lines)).write(opened, parts[rank])
        except WeightError as error:
            found[rank] = error

    threads = [threading.Thread(target=write, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return found


def begun(folder: Path) -> tuple[ShmPublisher, OpenSlot]:
    publisher = ShmPublisher(folder)
    return publisher, OpenSlot(publisher.address, publisher.begin(MANIFEST).generation)


def test_those_who_do_not_see_the_memory_are_shared_out_among_those_who_do() -> None:
    assert who_writes(at("a", "a", "b", "a", "b", "c", "c")) == [0, 1, 0, 3, 1, 3, 0]
    assert who_writes(at("a", "b", "b")) == [0, 0, 0]
    assert who_writes(at("", "", "a")) == [0, 0, 0], "nobody knows where the first ones are"
    assert who_writes([]) == []


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.sampled_from("ab"), min_size=4, max_size=4),
    st.integers(1, 6),
    st.sampled_from([1, 30, 1 << 20]),
)
def test_whoever_has_a_part_it_arrives(
    tmp_path_factory: pytest.TempPathFactory, where: list[str], cut: int, bucket: int
) -> None:
    """[7, 5] in two boxes of rows, three odd numbers and one without a shape, of four ranks on two machines; published
    in other dtypes than float32, in one bucket or many."""
    publisher, opened = begun(tmp_path_factory.mktemp("slots"))
    whole, odd, one = torch.randn(7, 5), torch.randn(3), torch.randn(())
    types = {name: tensor.dtype for name, tensor in OUTLINE.items()}
    parts = [
        [Part("w", (0, 0), whole[:cut], types["w"])],
        [Part("odd", (0,), odd, types["odd"]), Part("n", (), one, types["n"])],
        [Part("w", (cut, 0), whole[cut:], types["w"])],
        [],
    ]
    with mock.patch.object(parts_apart, "BUCKET_BYTES", bucket):
        found = written(opened, at(*where), parts)
    require_all(MANIFEST, sum(each for each in found if isinstance(each, int)))
    publisher.end(MANIFEST, None)
    _, received = ShmReceiver(publisher.address).receive()
    assert received["w"].equal(whole.bfloat16())
    assert received["odd"].equal(odd.bfloat16())
    assert received["n"].equal(one)


class Ranks:
    """Two, of which one is on another machine and has all that changes: over several versions."""

    def __init__(self, folder: Path, *, deltas: bool = True) -> None:
        self.publisher = ShmPublisher(folder)
        seen, lines = at("a", "b"), {(one, 1 - one): Queue[torch.Tensor]() for one in (0, 1)}
        self.writers = [PartWriter(Queues(rank, seen, lines), deltas=deltas) for rank in (0, 1)]

    def publish(self, number: int, whole: torch.Tensor, *, ends: bool = True, first: int = 1024) -> Came:
        """[4096] in bfloat16, of which the second has all after the `first`. What came."""
        manifest = build_manifest(Version(0, number), {"w": whole.to("meta")}, checksums=False)
        opened = OpenSlot(self.publisher.address, self.publisher.begin(manifest).generation)
        parts = [Part("w", (0,), whole[:first]), Part("w", (first,), whole[first:].float(), torch.bfloat16)]
        with ThreadPoolExecutor(2) as pool:
            writing = [pool.submit(self.writers[rank].write, opened, [parts[rank]]) for rank in (0, 1)]
            assert sum(each.result(30) for each in writing) == 8192
        if ends:
            self.publisher.end(manifest, None)
            assert ShmReceiver(self.publisher.address).receive()[1]["w"].equal(whole)
        return self.writers[0].came


def test_what_changed_of_a_ranks_own_part_is_sent_where_the_version_before_is_there(tmp_path: Path) -> None:
    """Of 3,072 numbers 30 change a bit; then all; then few, of a version that nobody ended, and in another slot's
    folder."""
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    ranks, whole = Ranks(tmp_path / "one"), torch.randn(4096).bfloat16()

    def step(places: slice) -> torch.Tensor:
        whole.view(torch.int16)[places] ^= 1
        return whole

    assert ranks.publish(1, whole) == Came(6144, 6144)
    for number in (2, 3):
        came = ranks.publish(number, step(slice(1024, None, 100)))
        assert (came.size, 0 < came.sent < 200) == (6144, True)
    assert ranks.publish(4, step(slice(None))) == Came(6144, 6144), "all have changed"
    assert ranks.publish(5, step(slice(1024, None, 100)), ends=False).sent < 200
    assert ranks.publish(5, step(slice(1024, None, 100))).sent == 6144, "what was sent last never became a version"
    assert ranks.publish(6, step(slice(1024, None, 100))).sent < 200
    ranks.publisher = ShmPublisher(tmp_path / "other")
    assert ranks.publish(7, step(slice(1024, None, 100))).sent == 6144, "of another life of the first rank"
    assert ranks.publish(8, step(slice(1024, None, 100))).sent < 200


def test_a_part_that_is_another_than_before_is_sent_whole(tmp_path: Path) -> None:
    ranks, whole = Ranks(tmp_path), torch.randn(4096).bfloat16()
    assert ranks.publish(1, whole) == Came(6144, 6144)
    assert ranks.publish(2, whole, first=2048) == Came(4096, 4096)
    assert ranks.publish(3, whole, first=2048).sent < 100


def test_without_deltas_all_of_a_part_is_sent(tmp_path: Path) -> None:
    ranks, whole = Ranks(tmp_path, deltas=False), torch.randn(4096).bfloat16()
    assert [ranks.publish(number, whole).sent for number in (1, 2)] == [6144, 6144]


class Damaged(Queues):
    """A bit of each byte of the buckets that it sends is another."""

    def send(self, tensor: torch.Tensor, rank: int) -> None:
        is_bucket = tensor.dtype is torch.uint8 and not bytes(tensor.numpy()).startswith(b"[[")
        super().send(tensor ^ 1 if is_bucket else tensor, rank)


def test_what_is_damaged_on_its_way_is_no_version(tmp_path: Path) -> None:
    _, opened = begun(tmp_path)
    seen, lines = at("a", "b"), {(1, 0): Queue[torch.Tensor](), (0, 1): Queue[torch.Tensor]()}
    PartWriter(Damaged(1, seen, lines)).write(opened, [Part("odd", (0,), torch.ones(3), torch.bfloat16)])
    with pytest.raises(WeightError, match="rank 1 has bytes of 'odd' that were damaged on their way"):
        PartWriter(Queues(0, seen, lines)).write(opened, [])


def test_what_has_no_place_in_the_version_is_told_and_nobody_waits(tmp_path: Path) -> None:
    _, opened = begun(tmp_path)
    wrong = [
        Part("v", (0,), torch.ones(2), torch.bfloat16),  # of no such name
        Part("odd", (2,), torch.ones(2), torch.bfloat16),  # ends behind it
        Part("n", (), torch.ones(()), torch.bfloat16),  # of another dtype
        Part("w", (0,), torch.ones(5), torch.bfloat16),  # of another shape
    ]
    for part in wrong:
        right = Part("odd", (0,), torch.ones(3), torch.bfloat16)
        told, sent, last = written(opened, at("a", "b", "b"), [[], [part], [right]])
        assert str(told).startswith(f"rank 1 has a part of {part.name!r} that the version has no place for: ")
        assert (sent, last) == (0, 0)


def test_a_slot_that_is_written_no_more_leaves_nobody_waiting(tmp_path: Path) -> None:
    publisher, opened = begun(tmp_path)
    publisher.end(MANIFEST, None)
    told, sent = written(opened, at("a", "b"), [[], [Part("n", (), torch.ones(()))]])
    assert "is written as generation 1; publish again" in str(told)
    assert sent == 0


def test_a_slot_that_is_ended_while_parts_are_on_their_way_is_told(tmp_path: Path) -> None:
    publisher, opened = begun(tmp_path)
    seen, lines = at("a", "b"), {(1, 0): Queue[torch.Tensor](), (0, 1): Queue[torch.Tensor]()}
    PartWriter(Queues(1, seen, lines)).write(opened, [Part("n", (), torch.ones(()))])

    class Ending(Queues):
        def receive(self, tensor: torch.Tensor, rank: int) -> None:
            super().receive(tensor, rank)
            if publisher.whole(MANIFEST.version) is None:
                publisher.end(MANIFEST, None)

    with pytest.raises(WeightError, match="publish again"):
        PartWriter(Ending(0, seen, lines)).write(opened, [])
