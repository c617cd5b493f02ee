"""Whether the object store of this node may be touched follows whether the head listens."""

import asyncio
import socket
import time
from collections.abc import Callable

import pytest

from headrace.runtime.ray.store_gate import StoreGate


def head(port: int = 0) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_open_while_the_head_listens_and_shut_while_nobody_does() -> None:
    one = head()
    port = one.getsockname()[1]
    gate = StoreGate(("127.0.0.1", port))
    try:
        time.sleep(0.5)
        assert gate.wait(0)
        one.close()
        until(lambda: not gate.wait(0))
        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(gate.wait_soon(), 0.5))
        with head(port):
            assert gate.wait(10)
            asyncio.run(asyncio.wait_for(gate.wait_soon(), 10))
    finally:
        gate.close()


def test_a_head_that_only_takes_its_time_keeps_it_open() -> None:
    """Nobody accepts, and the queue of those who wait to be is full."""
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        try:
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(busy.getsockname())
            gate = StoreGate(busy.getsockname())
            time.sleep(1)
            assert gate.wait(0)
            gate.close()
        finally:
            for each in waiting:
                each.close()
