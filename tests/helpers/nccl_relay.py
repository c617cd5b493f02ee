"""One of two relays that speak NCCL, each a process: `nccl_relay.py FOLDER receiver`, which says "ready", and reads a
port; then `nccl_relay.py FOLDER source`, which prints that. Two versions go from one to the other, and of the third a
header."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch

from headrace.weights.devices import device_name
from headrace.weights.manifest import build_manifest
from headrace.weights.plane import WeightError
from headrace.weights.relay.chain import BUCKET
from headrace.weights.relay.journey import Journey, Meeting
from headrace.weights.relay.relay import Relay
from headrace.weights.shm import ShmPublisher, ShmReceiver
from headrace.weights.version import Version

HOST, STILL_S = "127.0.0.1", 10.0


def tensors(number: int) -> dict[str, torch.Tensor]:
    """Of the version of this number: three buckets, the last of which is short."""
    return {"a": torch.arange(2 * BUCKET // 4, dtype=torch.int32) + number, "b": torch.full((100,), float(number))}


def journey(number: int) -> Journey:
    manifest = build_manifest(Version(0, number), tensors(number), checksums=False)
    return Journey(manifest, (0, 1), None, True, None)


def source(folder: Path, relay: Relay, device: str) -> None:
    publisher = ShmPublisher(folder / "published")
    port = relay.listen(HOST)
    tell(port)
    join(relay, port, 0, device)
    for number in (1, 2, 3):
        publisher.publish(Version(0, number), tensors(number).items())
        began = time.monotonic()
        try:
            tell(relay.send(journey(number), publisher.address).sent)
        except WeightError as error:
            tell(type(error).__name__, time.monotonic() - began < 4 * STILL_S, error)


def receiver(relay: Relay, device: str) -> None:
    tell("ready")
    join(relay, int(sys.stdin.readline()), 1, device)
    for number in (1, 2):
        assert relay.take(journey(number))
        found = ShmReceiver(relay.address).received()
        assert found.manifest.version == Version(0, number)
        assert all(torch.equal(found.tensors[name], wanted) for name, wanted in tensors(number).items())
        tell(number)
    relay._of_group().receive(torch.empty(24, dtype=torch.uint8), 0).here()  # the header of a bucket that nobody takes
    sys.stdin.readline()


def tell(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def join(relay: Relay, port: int, rank: int, device: str) -> None:
    try:
        relay.join(Meeting(HOST, port, "both", 2, (device, device)), rank, HOST)
    except WeightError as error:
        tell(f"refused: {error}")
        raise


def main() -> None:
    folder, role = Path(sys.argv[1]), sys.argv[2]
    relay, device = Relay(folder / role, STILL_S), device_name(torch.device("cuda", 0))
    if role == "source":
        source(folder, relay, device)
    else:
        receiver(relay, device)


if __name__ == "__main__":
    main()
