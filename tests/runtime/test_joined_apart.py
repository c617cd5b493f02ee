"""Ranks of a launcher on other machines: who is let in, and what then goes through the connection."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import stat
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config import ConfigError
from headrace.runtime.node_check import NodeUnfit, versions
from headrace.runtime.process import handshake
from headrace.runtime.process.channel import Channel
from headrace.runtime.process.frames import FrameError, Kind
from headrace.runtime.process.handshake import NotOurs, come_in, let_in
from headrace.runtime.process.joined import _write
from headrace.runtime.process.joined_apart import Gate, GateKeeper, JoinedApart, Launcher, served_apart
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.workers import BASE_TYPES

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
TOKEN, OTHER = b"t" * 32, b"o" * 32
TOLD = b"rank 1"


async def pair() -> tuple[Streams, Streams]:
    """The two ends of a connection."""
    one, other = socket.socketpair()
    return await asyncio.open_connection(sock=one), await asyncio.open_connection(sock=other)


async def outcome(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except NotOurs as error:
        return error


async def met(here: bytes, there: bytes, told: bytes = TOLD) -> tuple[Any, Any]:
    """What the listening and the coming side make of each other, by their tokens."""
    listens, comes = await pair()
    found = await asyncio.gather(
        _closing(comes, outcome(come_in(*comes, there, told))), _closing(listens, outcome(let_in(*listens, here)))
    )
    return found[1], found[0]


async def _closing(streams: Streams, work: Awaitable[Any]) -> Any:
    found = await work
    if isinstance(found, NotOurs):
        streams[1].close()
    return found


def test_who_has_the_token_is_let_in_and_nobody_else() -> None:
    assert asyncio.run(met(TOKEN, TOKEN)) == (TOLD, None)
    assert all(isinstance(each, NotOurs) for each in asyncio.run(met(TOKEN, OTHER)))


def test_who_asks_no_proof_of_the_other_is_not_let_in() -> None:
    """It goes on with a code of its own making, and with one that was good for another connection."""

    async def tried(made: Callable[[bytes], bytes]) -> Any:
        (reader, writer), listens = await pair()
        letting = asyncio.ensure_future(outcome(let_in(*listens, TOKEN)))
        writer.write(b"n" * 32)
        writer.write(made(await reader.readexactly(64)))
        return await letting

    async def good() -> bytes:
        """What one says that is let in."""
        (reader, writer), (far, to) = await pair()
        coming = asyncio.ensure_future(come_in(reader, writer, TOKEN, TOLD))
        number = await far.readexactly(32)
        to.write(b"f" * 32 + handshake._code(TOKEN, b"listens", number, b"f" * 32))
        await coming
        return await far.readexactly(32 + 2 + len(TOLD))

    for said in (b"c" * 32 + b"\x06\x00" + TOLD, asyncio.run(good()), b"c" * 32 + b"\xff\xff"):
        assert isinstance(asyncio.run(tried(lambda _, said=said: said)), NotOurs)  # type: ignore[misc]
    reflected = asyncio.run(tried(lambda heard: heard[32:] + b"\x00\x00"))
    assert isinstance(reflected, NotOurs), "its own code, said back"


@given(place=st.integers(32, 32 + 32 + 2 + len(TOLD) - 1), bit=st.integers(0, 7))
def test_nothing_that_was_changed_on_the_way_is_taken(place: int, bit: int) -> None:
    async def tried() -> Any:
        (reader, writer), (near, to) = await pair()
        (far, on), listens = await pair()
        letting = asyncio.ensure_future(outcome(let_in(*listens, TOKEN)))
        coming = asyncio.ensure_future(outcome(come_in(reader, writer, TOKEN, TOLD)))
        on.write(await near.readexactly(32))
        to.write(await far.readexactly(64))
        said = bytearray(await near.readexactly(32 + 2 + len(TOLD)))
        said[place - 32] ^= 1 << bit
        on.write(said)
        on.close()
        await coming
        return await letting

    found = asyncio.run(tried())
    assert isinstance(found, NotOurs)


def test_who_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def tried() -> Any:
        _, listens = await pair()
        return await outcome(let_in(*listens, TOKEN))

    monkeypatch.setattr(handshake, "_SECONDS", 0.05)
    assert isinstance(asyncio.run(tried()), NotOurs)


def says(rank: int, **more: Any) -> bytes:
    return json.dumps({"rank": rank, "host": "far", "versions": dict(versions()), **more}).encode()


async def enters(gate: Gate, told: bytes) -> Streams:
    streams = await asyncio.open_connection(gate.host, gate.port)
    await come_in(*streams, bytes.fromhex(gate.token), told)
    return streams


def test_a_rank_that_came_is_found_and_its_end_is_known() -> None:
    async def run() -> None:
        keeper = GateKeeper("127.0.0.1")
        gate = await keeper.open()
        assert await keeper.open() == gate
        with pytest.raises(WaitTimeout, match=r"rank 1 of the launcher to reach 127\.0\.0\.1"):
            await keeper.arrived(1, 0.05)
        with pytest.raises(NotOurs):
            await enters(Gate(gate.host, gate.port, "00" * 32), says(1))
        _, writer = await enters(gate, says(1))
        process = JoinedApart(await keeper.arrived(1, 5.0))
        await enters(gate, says(2, versions={**versions(), "torch": "0.1"}))
        with pytest.raises(NodeUnfit, match=r"the node of rank 2, far, has torch 0\.1, and the controller .*install"):
            await keeper.arrived(2, 5.0)
        keeper.close()
        with pytest.raises(OSError):
            await enters(gate, says(1))
        ended = asyncio.ensure_future(process.ended())
        await asyncio.sleep(0.1)
        assert not ended.done(), "who is in stays in"
        writer.close()
        assert await ended == "its connection from far ended: its process has, or its machine is lost"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("said", "why"),
    [(b"", r"0 bytes read on a total of 4"), (b"\xff" * 4, r"of 4294967295 bytes is longer than 1048576")],
)
def test_a_rank_that_is_refused_says_why_before_it_ends(
    said: bytes, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Left(BaseException):
        pass

    def leave(code: int) -> NoReturn:
        raise Left(code)

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await let_in(reader, writer, TOKEN)
        writer.write(said)
        writer.close()

    async def run() -> None:
        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            gate = Gate("127.0.0.1", server.sockets[0].getsockname()[1], TOKEN.hex())
            await served_apart(1, gate, lambda stuck: None, lambda name: None, leave)

    with pytest.raises(Left, match="1"):
        asyncio.run(run())
    assert re.search(f"rank 1 is not taken by the first rank at 127.0.0.1, .*{why}", capsys.readouterr().err)


def test_who_has_more_to_say_of_itself_than_there_is_room_for_is_told_apart() -> None:
    async def run() -> Any:
        listens, comes = await pair()
        told = b"x" * 4097
        found, _ = await asyncio.gather(outcome(let_in(*listens, TOKEN)), outcome(come_in(*comes, TOKEN, told)))
        return found

    assert str(asyncio.run(run())) == "it has 4097 bytes to say of itself, more than 4096"


def test_an_address_of_another_machine_is_told_by_its_key() -> None:
    with pytest.raises(ConfigError, match=r"runtime\.host is 192\.0\.2\.1, and the first rank cannot listen there: "):
        asyncio.run(GateKeeper("192.0.2.1").open())


def test_what_has_the_token_is_its_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "ranks.json"
    _write(path, "{}")
    _write(path, '{"token": "a"}')
    assert path.read_text() == '{"token": "a"}'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_launcher_that_answered_once_and_does_not_any_more_is_lost() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        launcher = Launcher(*listening.getsockname(), lost_s=0.1)
        time.sleep(0.11)
        assert not launcher.is_lost(), "nobody has answered yet"
        listening.listen()
        assert not launcher.is_lost()
    time.sleep(0.11)
    assert launcher.is_lost()


def test_large_arrays_go_through_the_connection_and_no_file_is_read_for_it(tmp_path: Path) -> None:
    async def run() -> None:
        here, there = await pair()
        one, other = Channel(*here, BASE_TYPES), Channel(*there, BASE_TYPES)
        sent = np.arange(1 << 18)
        reading = asyncio.ensure_future(other.read())
        await one.send(Kind.CALL, 1, [sent], "an array")
        frame = await reading
        assert frame is not None
        assert np.array_equal(other.value(frame, "an array")[0], sent)
        secret = tmp_path / "secret"
        secret.write_bytes(b"s" * 16)
        head = b"".join(_naming(str(secret)))
        here[1].write(head)
        with pytest.raises(FrameError, match="secret' is named by another machine"):
            await other.read()

    asyncio.run(run())


def _naming(path: str) -> list[bytes]:
    import msgpack

    head = msgpack.packb(["call", 2, "", "", 1, path, [[0, 16]]])
    return [len(head).to_bytes(4, "little") + (1).to_bytes(4, "little"), head, b"\xc0"]
