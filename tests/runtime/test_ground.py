"""A run whose ground ends under it; what is said of it; and a shelf that was made anew."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import NoReturn

import pytest

from headrace.controller.building.ray_head import last_words, which_ended
from headrace.runtime.ground import GroundLost, on_ground
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.workers import WorkerLost


class Ends:
    def __init__(self, after_s: float) -> None:
        self._after_s = after_s

    async def ended(self) -> NoReturn:
        await asyncio.sleep(self._after_s)
        raise GroundLost("the run's Ray has ended: raylet")

    async def columns_lost(self) -> NoReturn:
        raise NotImplementedError


def test_work_is_cancelled_and_a_loss_that_follows_is_told_as_the_ground_s() -> None:
    async def waits() -> int:
        await asyncio.sleep(60)
        return 1

    async def fails() -> int:
        raise WorkerLost(0, "its process ended")

    async def is_quick() -> int:
        return 7

    async def refuses() -> int:
        raise KeyError("another matter")

    async def main() -> None:
        runtime = InlineRuntime()
        for work in (waits(), fails()):
            with pytest.raises(GroundLost, match="raylet"):
                await on_ground(Ends(0.1), work, runtime)
        assert await on_ground(Ends(60), is_quick(), runtime) == 7
        with pytest.raises(KeyError):
            await on_ground(Ends(60), refuses(), runtime)
        await runtime.close()

    asyncio.run(main())


def test_which_process_of_ray_s_has_ended_is_read_from_its_log() -> None:
    log = (
        "2026-11-26 12:18:24,066\tERR scripts.py:1307 -- Some Ray subprocesses exited unexpectedly:\n"
        "2026-11-26 12:18:24,066\tERR scripts.py:87 -- gcs_server [exit code=-9]\n"
        "2026-11-26 12:18:24,067\tERR scripts.py:115 -- ----- BEGIN gcs_server.out tail -----\n"
    )
    assert which_ended(log) == "gcs_server (ended by signal 9)"
    assert which_ended(log.replace("-9", "1")) == "gcs_server (exit status 1)"
    assert which_ended("Ray runtime started.\n") is None


def test_the_reason_is_found_in_a_log_that_ends_with_advice() -> None:
    log = (
        "Traceback (most recent call last):\n  File x\n"
        "ValueError: Ray component gcs_server is trying to use a port number 40001 that is used by others.\n"
        "If you allocate ports, please make sure the same port is not used by multiple components.\n"
    )
    assert last_words(log).startswith("ValueError: Ray component gcs_server is trying to use a port number 40001")
    assert last_words("one\ntwo\n\n") == "two"
    assert last_words("") == ""


@pytest.mark.usefixtures("ray_imported")
def test_a_cluster_is_lost_once_nobody_has_answered_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.runtime.ray import joining
    from headrace.runtime.ray.joining import Reached

    now = [0.0]
    monkeypatch.setattr(joining, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with socket.create_server(("127.0.0.1", 0)) as head:
        reached = Reached(f"127.0.0.1:{head.getsockname()[1]}", look_s=0.05, lost_s=0.2)
        now[0] += 0.06
        assert reached.lost() is None
        assert reached.answers
    now[0] += 0.06
    assert reached.lost() is None  # it may come back
    assert not reached.answers
    now[0] += 0.2
    assert "nobody has answered at its head's address 127.0.0.1:" in str(reached.lost())


@pytest.mark.usefixtures("ray_imported")
@pytest.mark.parametrize("address", ["127.0.0.1", "ray://127.0.0.1:10001", "http://127.0.0.1:8265", ":6379"])
def test_what_is_no_address_of_a_head_is_refused(address: str) -> None:
    from headrace.runtime.ray.joining import ClusterError, join

    with pytest.raises(ClusterError, match=f"runtime.address is {address}; write HOST:PORT"):
        join(address, "a test")


@pytest.mark.usefixtures("ray_imported")
def test_nobody_waits_for_what_a_shelf_knew_that_has_ended() -> None:
    from headrace.runtime.ray.shelf import Shelf

    async def main() -> None:
        first, second = Shelf(), Shelf()
        await first.keep("rollout/0", [3, 4], ["object"])
        (life, last), (other, nothing) = await first.told(), await second.told()
        assert life != other
        assert (last, nothing) == ({"rollout/0": 4}, {})
        await second.keep("rollout/0", [5], ["new"])  # before it is told
        await second.lost(last)
        async with asyncio.timeout(1):
            assert await second.find_all([("rollout/0", 4)]) == []
            assert await second.find_all([("rollout/0", 5)]) == [("new", [5], "rollout/0")]

    asyncio.run(main())
