"""A cluster of a run's own that cannot be joined: without a Ray."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

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
