"""What is put when Ray's object store has no room for it."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest

from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.wire.wire_types import WireTypes

if TYPE_CHECKING:
    from headrace.runtime.ray.refs import ActorRefs

_STORE = 80 << 20
_SPACE = "full"
_NOTHING_TO_DISK = {"automatic_object_spilling_enabled": False, "local_fs_capacity_threshold": 0.0}
"""Else Ray puts what has no room into files, spilled or as its store's own."""


@pytest.fixture
def small_store(ray_environment: Mapping[str, str]) -> Iterator[None]:
    """Of a Ray of this test's own, which spills nothing."""
    with mock.patch.dict(os.environ, ray_environment):
        ray = pytest.importorskip("ray", reason="pip install 'headrace[cluster]'")
        folder = tempfile.mkdtemp(prefix="headrace-ray-")  # short: sockets lie in it
        try:
            ray.init(
                address="local",
                num_cpus=1,
                object_store_memory=_STORE,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                namespace=_SPACE,
                _node_ip_address="127.0.0.1",
                _temp_dir=folder,
                _system_config=_NOTHING_TO_DISK,
            )
            yield
        finally:
            ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("small_store")
def test_what_has_no_room_is_lost_and_the_next_one_that_is_put_says_so() -> None:
    import ray

    from headrace.runtime.ray.refs import ActorRefs
    from headrace.runtime.ray.shelf import SHELF, Shelf

    shelf = ray.remote(Shelf).options(name=SHELF, namespace=_SPACE, num_cpus=0, max_concurrency=10).remote()
    ray.get(shelf.count.remote(), timeout=60)
    refs = ActorRefs("rollout/0", 0, WireTypes(), _SPACE)
    reader = ActorRefs("", 0, WireTypes(), _SPACE)
    try:
        kept = refs.put({"tokens": np.arange(1000)})
        assert reader.get(kept)["tokens"].sum() == 499_500
        lost = refs.put({"tokens": np.zeros(_STORE, np.uint8)})
        told = _next_failure(refs)
        assert told.errno == errno.ENOSPC
        assert told.strerror is not None
        assert "of columns of rollout/0 do not fit into Ray's object store on its node: start Ray" in told.strerror
        assert int(told.strerror.split()[0]) >= _STORE
        with pytest.raises(RefLost):
            reader.get(lost)
        assert reader.get(kept)["tokens"].sum() == 499_500
    finally:
        refs.close()
        reader.close()


def _next_failure(refs: ActorRefs) -> OSError:
    for _ in range(200):
        try:
            refs.put({"one": 1})
        except OSError as error:
            return error
        time.sleep(0.1)
    raise AssertionError("nothing was told")


class FullRay:
    """What `ActorRefs` asks of Ray. The first object goes in, once it is let; then there is no room."""

    def __init__(self) -> None:
        self.freed: list[tuple[str, int]] = []
        self.begun, self.let = threading.Event(), threading.Event()

    def get_actor(self, name: str, namespace: str) -> Any:
        return SimpleNamespace(keep=_Called(lambda *_: None), free=_Called(self.freed.extend))

    def put(self, boxes: Sequence[Any]) -> object:
        from ray.exceptions import ObjectStoreFullError

        if self.begun.is_set():
            raise ObjectStoreFullError("no room")
        self.begun.set()
        assert self.let.wait(10)
        return object()


class _Called:
    def __init__(self, remote: Callable[..., Any]) -> None:
        self.remote = remote


@pytest.mark.usefixtures("ray_imported")
def test_what_is_freed_in_the_moment_of_a_put_without_room_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.runtime.ray import refs as module

    ray = FullRay()
    monkeypatch.setattr(module, "ray", ray)
    refs = module.ActorRefs("rollout/0", 0, WireTypes(), _SPACE)
    try:
        kept = refs.put({"one": 1})
        assert ray.begun.wait(10)
        refs.put({"two": 2})
        refs.free(kept)
        ray.let.set()
        _next_failure(refs)
        assert ray.freed == [(kept.keeper, kept.number)]
    finally:
        refs.close()


class Shut:
    """A gate: the store is gone."""

    def wait(self, seconds: float) -> bool:
        return False

    def close(self) -> None: ...


class RayWithoutStore:
    """It has a shelf, which knows where all is, and no store: to touch that would end this process."""

    def __init__(self) -> None:
        found = [("an object", (0,), "rollout/0")]
        self._shelf = SimpleNamespace(find_all=_Called(lambda keys: found))

    def get_actor(self, name: str, namespace: str) -> Any:
        return self._shelf

    def get(self, asked: Any, timeout: float) -> Any:
        assert asked != ["an object"], "the store is touched"
        return asked


@pytest.mark.usefixtures("ray_imported")
@pytest.mark.parametrize("closes", [False, True])
def test_a_store_that_is_gone_is_not_touched_and_nobody_waits_for_it_for_ever(
    monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    from headrace.runtime.ray import refs as module

    monkeypatch.setattr(module, "ray", RayWithoutStore())
    monkeypatch.setattr(module, "_FETCH_S", 60.0 if closes else 0.3)
    gate: Any = Shut()
    refs = module.ActorRefs("", 0, WireTypes(), _SPACE, gate)
    refs.put({"one": 1})  # it waits to be sent
    if closes:
        threading.Timer(0.3, refs.close).start()
    try:
        with pytest.raises(RefLost):
            refs.get(Ref("rollout/0", 0, ("tokens",)))
    finally:
        refs.close()
