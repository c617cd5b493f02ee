"""Who has a part of a model reads that part of a version, and no more: pages of others' parts are not mapped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headrace.weights.disk import DiskPublisher
from headrace.weights.plane import WeightPublisher
from headrace.weights.shm import IN_ORDER, ShmPublisher
from headrace.weights.version import Version

pytestmark = [pytest.mark.slow, pytest.mark.cpu]
MIB = 1 << 20
ROWS, COLUMNS, TENSORS = 256, 16384, 4
"""Of 16 MiB each."""
READER = """
import json, re, sys
from pathlib import Path
import torch
from headrace.weights.plane import Share, WeightOffer
from headrace.weights.receiving import receiver_of
from headrace.weights.version import Version

def mapped():
    status = Path("/proc/self/status").read_text()
    return sum(int(re.search(rf"{each}:\\s+(\\d+)", status)[1]) << 10 for each in ("RssFile", "RssShmem"))

transport, address, rank, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
own = {}
def take(tensors):
    for name, tensor in tensors.items():
        rows = len(tensor) // ranks
        own[name] = tensor[rank * rows : (rank + 1) * rows].clone()
receiver = receiver_of(WeightOffer(Version(0, 1), transport, address))
before = mapped()
received = receiver.receive_buckets(take, share=Share(rank, ranks))  # which keeps a file mapped
print(json.dumps([mapped() - before, {name: float(part.sum()) for name, part in own.items()}]))
"""


def read(publisher: WeightPublisher, rank: int, ranks: int) -> int:
    """Bytes of the version that are mapped once the rank has its part."""
    command = [sys.executable, "-c", READER, publisher.transport, publisher.address, str(rank), str(ranks)]
    size, sums = json.loads(subprocess.run(command, capture_output=True, check=True, text=True, timeout=60).stdout)
    assert sums == {f"t{number}": ROWS // ranks * COLUMNS * float(number) for number in range(TENSORS)}
    assert isinstance(size, int)
    return size


def published(publisher: WeightPublisher) -> WeightPublisher:
    tensors = [(f"t{number}", torch.full((ROWS, COLUMNS), float(number))) for number in range(TENSORS)]
    publisher.publish(Version(0, 1), tensors)
    return publisher


@pytest.mark.skipif(not IN_ORDER, reason="here a checksum tells whether all has arrived")
def test_through_shared_memory_a_rank_reads_its_part(tmp_path: Path) -> None:
    publisher = published(ShmPublisher(tmp_path))
    whole = TENSORS * 16 * MIB
    assert whole / 4 <= read(publisher, 2, 4) < whole / 4 + 14 * MIB, "with code of libraries; another part is 16"
    assert read(publisher, 0, 1) >= whole


def test_from_disk_a_rank_reads_its_part_and_its_share_of_what_is_looked_at(tmp_path: Path) -> None:
    publisher = published(DiskPublisher(tmp_path))
    whole = TENSORS * 16 * MIB
    its_share = whole / 4 + 3 * 16 * MIB / 4
    assert its_share <= read(publisher, 2, 4) < its_share + 16 * MIB, "with the code that reads it"
    assert read(publisher, 0, 1) >= whole
