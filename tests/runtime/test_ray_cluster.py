"""How a run comes into a cluster, and hears of its end: without a Ray."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from types import SimpleNamespace

import pytest

from headrace.runtime.ground import GroundLost
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.local.local_refs import Keepers
from headrace.runtime.local.service import Service
from headrace.runtime.wire.wire_types import WireTypes


class Head:
    def __init__(self) -> None:
        self.is_up = False

    def start(self) -> str:
        self.is_up = True
        return "127.0.0.1:1"

    def ended(self) -> str | None:
        return None

    def close(self) -> None:
        self.is_up = False


def find(name: str) -> Service:
    raise KeyError(name)


@pytest.mark.usefixtures("ray_imported")
def test_a_head_that_lets_nobody_in_is_ended_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.runtime.ray import cluster

    asked: list[str] = []

    def join(address: str, namespace: str) -> None:
        asked.append(address)
        raise cluster.ClusterError("nobody gets in")

    monkeypatch.setattr(cluster, "ray", SimpleNamespace(is_initialized=lambda: False, shutdown=lambda: None))
    monkeypatch.setattr(cluster, "join", join)
    head = Head()

    async def main() -> None:
        runtime = InlineRuntime()
        made = cluster.RayCluster("a test", head=head)
        with pytest.raises(cluster.ClusterError, match="nobody gets in"):
            await made.open(runtime, WireTypes, Keepers(), find)
        assert asked == ["127.0.0.1:1"]
        assert not head.is_up  # before anything is closed
        await made.close()
        await runtime.close()

    asyncio.run(main())


@pytest.mark.usefixtures("ray_imported")
def test_a_process_that_is_in_a_cluster_hears_of_its_end_and_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.runtime.ray import cluster, joining

    there = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{there.getsockname()[1]}"
    monkeypatch.setattr(cluster, "ray", SimpleNamespace(is_initialized=lambda: True))
    monkeypatch.setattr(cluster, "own_address", lambda: address)
    monkeypatch.setattr(cluster, "_LOOK_S", 0.01)
    monkeypatch.setattr(cluster, "Reached", partial(joining.Reached, look_s=0.02, lost_s=0.2))
    head = Head()

    async def main() -> None:
        runtime = InlineRuntime()
        other = cluster.RayCluster("a test", address="127.0.0.1:1", head=None)
        with pytest.raises(cluster.ClusterError, match=rf"is 127\.0\.0\.1:1, and this process is in .* at {address}"):
            await other.open(runtime, WireTypes, Keepers(), find)
        made = cluster.RayCluster("a test", head=head)
        await made.open(runtime, WireTypes, Keepers(), find)
        assert not head.is_up
        ending = asyncio.ensure_future(made.ended())
        await asyncio.sleep(0.3)
        assert not ending.done()
        there.close()
        async with asyncio.timeout(5):
            with pytest.raises(
                GroundLost, match="the Ray cluster has ended: nobody has answered at its head's address"
            ):
                await ending
        await made.close()
        await runtime.close()

    asyncio.run(main())


@pytest.mark.usefixtures("ray_imported")
def test_the_cluster_that_a_process_is_in_may_be_named_in_any_way() -> None:
    from headrace.runtime.ray.admission import ClusterError, require_same_cluster

    for own in ("127.0.0.1:6379", "localhost:6379"):
        for address in ("127.0.0.1:6379", "localhost:6379", "auto"):
            require_same_cluster(address, own)
    for address in ("127.0.0.1:6380", "192.0.2.7:6379", "no-such-host.invalid:6379"):
        with pytest.raises(
            ClusterError, match=f"^runtime.address is {address}, and this .*; leave runtime.address out"
        ):
            require_same_cluster(address, "127.0.0.1:6379")


@pytest.mark.usefixtures("ray_imported")
def test_an_address_is_a_host_and_a_port() -> None:
    from headrace.runtime.ray.admission import host_and_port

    assert host_and_port("10.0.0.7:6379") == ("10.0.0.7", 6379)
    assert host_and_port("[::1]:65535") == ("::1", 65535)
    for address in ("10.0.0.7", ":6379", "http://10.0.0.7:6379", "10.0.0.7:", "10.0.0.7:0", "10.0.0.7:65536"):
        with pytest.raises(ValueError, match="is no HOST:PORT"):
            host_and_port(address)


@pytest.mark.usefixtures("ray_imported")
def test_a_call_is_its_askers() -> None:
    from headrace.runtime.ray.asker import CONTROLLER, Asker

    first = Asker("rollout/1", 2)
    for asker in (CONTROLLER, first, Asker("rollout/1", 21), Asker("rollout/12", 2)):
        assert Asker.of(f"{asker.prefix}140.7") == asker
        assert asker == first or not asker.prefix.startswith(first.prefix)
