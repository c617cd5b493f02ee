"""All transports keep one promise: the newest version, whole, or an error that says why not."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from headrace.weights.manifest import build_manifest
from headrace.weights.plane import Received, WeightError, WeightPublisher
from headrace.weights.transport import IN_MEMORY, open_transport
from headrace.weights.version import INITIAL, Version

ON_CUDA = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(params=["memory", "disk", "shm", pytest.param("cuda_ipc", marks=ON_CUDA)])
def publisher(request: pytest.FixtureRequest, tmp_path: Path) -> WeightPublisher:
    folder = tmp_path / "weights"
    if request.param in IN_MEMORY:
        folder.mkdir()
    return open_transport(request.param, folder, torch.device("cuda", 0))


def weights(value: float) -> dict[str, torch.Tensor]:
    """One of each shape and dtype that models have, two that share their storage, and one that is strided."""
    matrix = torch.full((3, 4), value)
    return {
        "embed.weight": matrix,
        "lm_head.weight": matrix,
        "first_row": matrix[0],
        "norm.weight": torch.full((5,), value, dtype=torch.bfloat16),
        "half.weight": torch.full((2,), value, dtype=torch.float16),
        "transposed": torch.arange(6.0).reshape(2, 3).T + value,
        "scale": torch.tensor(value),
        "steps": torch.tensor([1, 2], dtype=torch.int64),
        "empty": torch.empty(0, 4),
        "none": torch.empty(0),
    }


def test_receiver_gets_what_was_published(publisher: WeightPublisher) -> None:
    sent = weights(1.5)
    manifest = publisher.publish(INITIAL, sent.items())
    received_manifest, received = publisher.receiver().receive()
    assert received_manifest == manifest
    assert manifest.version == INITIAL
    assert [entry.name for entry in manifest.entries] == list(sent)
    assert received.keys() == sent.keys()
    for name, tensor in sent.items():
        assert received[name].dtype == tensor.dtype
        assert torch.equal(received[name].cpu(), tensor)
        assert not received[name].requires_grad


def test_nothing_published_yet(publisher: WeightPublisher) -> None:
    receiver = publisher.receiver()
    assert receiver.latest() is None
    with pytest.raises(WeightError, match="no weights were published"):
        receiver.receive()


def test_publication_is_a_snapshot_and_stays_one_while_newer_versions_come(
    publisher: WeightPublisher,
) -> None:
    parameter = torch.nn.Parameter(torch.zeros(4))
    receiver = publisher.receiver()
    held = []
    for number in range(5):
        publisher.publish(Version(0, number), [("weight", parameter)])
        with torch.no_grad():
            parameter += 1
        assert receiver.latest() == Version(0, number)
        held.append(receiver.receive()[1]["weight"])
    assert [tensor.tolist() for tensor in held] == [[float(number)] * 4 for number in range(5)]


def test_receiver_goes_straight_to_the_newest(publisher: WeightPublisher) -> None:
    receiver, other = publisher.receiver(), publisher.receiver()
    for number in range(4):
        publisher.publish(Version(0, number), weights(number).items())
    for end in (receiver, other):
        manifest, tensors = end.receive()
        assert manifest.version == Version(0, 3)
        assert tensors["scale"].item() == 3.0


@pytest.mark.parametrize(
    ("last", "version", "said"),
    [
        ((0, 3), (0, 3), "cannot publish v3: it is not newer, v3 is published already"),
        ((0, 3), (0, 2), "cannot publish v2: it is not newer, v3"),
        ((1, 3), (0, 9), "cannot publish v9: it belongs to a branch that was left, v3~1"),
    ],
)
def test_only_a_newer_version_is_published(
    publisher: WeightPublisher, last: tuple[int, int], version: tuple[int, int], said: str
) -> None:
    publisher.publish(Version(*last), weights(1).items())
    with pytest.raises(WeightError, match=said):
        publisher.publish(Version(*version), weights(2).items())
    assert publisher.receiver().receive()[1]["scale"].item() == 1.0


def test_a_new_branch_may_go_back_in_number(publisher: WeightPublisher) -> None:
    publisher.publish(Version(0, 12), weights(1).items())
    publisher.publish(Version(1, 10), weights(2).items())
    assert publisher.receiver().latest() == Version(1, 10)


def test_publication_that_fails_halfway_leaves_the_last_version(publisher: WeightPublisher) -> None:
    def breaks() -> Iterator[tuple[str, torch.Tensor]]:
        yield "scale", torch.tensor(2.0)
        raise RuntimeError("gather failed")

    publisher.publish(Version(0, 1), weights(1).items())
    with pytest.raises(RuntimeError, match="gather failed"):
        publisher.publish(Version(0, 2), breaks())
    for bad in ([], [("scale", torch.ones(1)), ("scale", torch.ones(1))]):
        with pytest.raises(WeightError, match=r"there are no tensors|two tensors are named 'scale'"):
            publisher.publish(Version(0, 2), bad)
    assert publisher.receiver().receive()[1]["scale"].item() == 1.0
    publisher.publish(Version(0, 2), weights(2).items())
    assert publisher.receiver().receive()[1]["scale"].item() == 2.0


def test_memory_snapshot_is_freed_when_its_last_reader_lets_go(tmp_path: Path) -> None:
    publisher = open_transport("memory", tmp_path)
    publisher.publish(Version(0, 0), weights(0).items())
    _, tensors = publisher.receiver().receive()
    reader = weakref.ref(tensors["scale"])
    publisher.publish(Version(0, 1), weights(1).items())
    assert reader() is not None
    del tensors
    assert reader() is None


def test_memory_receiver_that_writes_into_a_snapshot_is_found_out(tmp_path: Path) -> None:
    publisher = open_transport("memory", tmp_path)
    with torch.inference_mode():
        publisher.publish(Version(0, 0), [("weight", torch.zeros(2))])
    publisher.receiver().receive()[1]["weight"].mul_(2)
    with pytest.raises(WeightError, match="'weight' of v0 was written to by a receiver"):
        publisher.receiver().receive()


def test_checksums_are_left_out_where_the_bytes_stay_in_the_process(tmp_path: Path) -> None:
    sent = weights(1)
    for transport, expected in (("memory", build_manifest(INITIAL, sent, checksums=False)), ("disk", None)):
        publisher = open_transport(transport, tmp_path)
        assert publisher.publish(INITIAL, sent.items()) == (expected or build_manifest(INITIAL, sent))


def test_what_is_made_of_a_version_is_of_that_version(publisher: WeightPublisher) -> None:
    publisher.publish(INITIAL, weights(1).items())
    receiver = publisher.receiver()

    def made(received: Received) -> tuple[Version, dict[str, torch.Tensor]]:
        own = {name: tensor if received.lasts else tensor.clone() for name, tensor in received.tensors.items()}
        return received.manifest.version, own

    version, own = receiver.receive_as(made)
    for number in (1, 2, 3):
        publisher.publish(Version(0, number), weights(9).items())
    assert version == INITIAL
    assert all(torch.equal(own[name].cpu(), tensor) for name, tensor in weights(1).items())


@pytest.mark.parametrize("limit", [1, 100, 2**20])
def test_buckets_bring_every_tensor_once_and_stay_below_their_limit(publisher: WeightPublisher, limit: int) -> None:
    sent = weights(1.5)
    publisher.publish(INITIAL, sent.items())
    buckets: list[dict[str, torch.Tensor]] = []
    received = publisher.receiver().receive_buckets(
        lambda bucket: buckets.append({name: tensor.clone() for name, tensor in bucket.items()}), limit
    )
    assert received.manifest.version == INITIAL
    assert [name for bucket in buckets for name in bucket] == list(sent)
    for bucket in buckets:
        assert len(bucket) == 1 or sum(tensor.nbytes for tensor in bucket.values()) <= limit
        assert all(torch.equal(tensor.cpu(), sent[name]) for name, tensor in bucket.items())
    assert len(buckets) == (1 if limit == 2**20 else len(buckets))


def test_a_version_that_is_overtaken_in_the_midst_of_its_buckets_begins_again(tmp_path: Path) -> None:
    publisher = open_transport("shm", tmp_path)
    publisher.publish(Version(0, 0), weights(0).items())
    receiver, loaded, numbers = publisher.receiver(), dict[str, float](), [1, 2]

    def take(bucket: Mapping[str, torch.Tensor]) -> None:
        loaded.update({name: float(tensor.float().sum()) for name, tensor in bucket.items()})
        if numbers:  # twice: the second writes into the slot that is read
            publisher.publish(Version(0, number := numbers.pop(0)), weights(number).items())

    received = receiver.receive_buckets(take, limit=1)
    assert received.manifest.version == Version(0, 2)
    assert loaded == {name: float(tensor.float().sum()) for name, tensor in weights(2).items()}
