"""The agents of the gateway's benchmarks, in a process of their own: plain sockets, one connection an episode.

It is started by them. Keys of episodes come as lines of JSON on its standard input; what is over, and what was
measured, goes out the same way. A request's body is made before its time comes, and the answer is read after it was
timed. In an open loop requests leave when they are due (Poisson arrivals), however many are unanswered; a latency is
counted from when the request was due.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import selectors
import sys
import time
from collections import deque
from typing import Any
from urllib.parse import urlsplit

from benchmarks.gateway_stub import Lengths, taken, tokenizer, words
from headrace.runtime.process.identity import open_many_files

TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks up what a key stands for.",
        "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
}
_LENGTH, _END = re.compile(rb"(?i)\r\ncontent-length: *(\d+)"), b"\r\n0\r\n\r\n"
_TEXTS = 256
_SPIN_S = 0.5e-3
"""Before a request is due: a sleep may take as much longer than it should."""


class Connection(asyncio.Protocol):
    """Of one episode, kept open."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[float, float, bytes]] | None = None
        self._data = bytearray()
        self._first = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self, request: bytes) -> asyncio.Future[tuple[float, float, bytes]]:
        """When the first byte of the answer's body came, when its last, and the answer with its head."""
        assert self._transport is not None
        self._answer, self._first = asyncio.get_running_loop().create_future(), 0.0
        self._data.clear()
        self._transport.write(request)
        return self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._data += data
        body = self._data.find(b"\r\n\r\n") + 4
        if not self._first and 4 <= body < len(self._data):
            self._first = now
        if self._answer is not None and body >= 4 and self._is_whole(body):
            self._answer.set_result((self._first, now, bytes(self._data)))
            self._answer = None

    def _is_whole(self, body: int) -> bool:
        """`body`: where it begins."""
        size = _LENGTH.search(self._data, 0, body)
        return self._data.endswith(_END) if size is None else len(self._data) == body + int(size[1])

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(RuntimeError(f"the gateway hung up: {error}; so far: {bytes(self._data)!r}"))


class Conversation:
    """One episode."""

    def __init__(self, base_url: str, key: str, opening: str, results: list[str], turns: int) -> None:
        self.key, self.left = key, turns
        self._address = urlsplit(base_url)
        self.connection = Connection()
        self._messages: list[dict[str, Any]] = [{"role": "user", "content": opening}]
        self._results = results
        self._head = (
            f"POST {self._address.path}/chat/completions HTTP/1.1\r\nHost: {self._address.netloc}\r\n"
            f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: "
        )
        self.request = self._made()

    async def connect(self) -> None:
        host, port = self._address.hostname, self._address.port
        assert host is not None
        assert port is not None
        await asyncio.get_running_loop().create_connection(lambda: self.connection, host, port)

    def take(self, answer: bytes) -> None:
        """Go on from it. Raises RuntimeError if it is none."""
        head, _, body = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(f"the gateway refused a request: {answer[:2000]!r}")
        content = ""
        calls: list[dict[str, Any]] = []
        for event in (_joined(body) if b"chunked" in head else body).split(b"\n\n"):
            if not event.startswith(b"data: {"):
                continue
            delta = json.loads(event[len(b"data: ") :])["choices"][0]["delta"]
            content += delta.get("content") or ""
            calls += delta.get("tool_calls") or []
        for call in calls:
            del call["index"]
        said = {"role": "assistant", "content": content, "tool_calls": calls}
        result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": self._results[self.left % _TEXTS]}
        self.left -= 1
        self._messages += [said, result]
        if self.left:
            self.request = self._made()

    def _made(self) -> bytes:
        body = json.dumps({"model": "policy", "messages": self._messages, "tools": [TOOL], "stream": True}).encode()
        return f"{self._head}{len(body)}\r\n\r\n".encode() + body


def _joined(body: bytes) -> bytes:
    """Of a body in chunks."""
    parts, place = [], 0
    while (end := body.index(b"\r\n", place)) and (size := int(body[place:end], 16)):
        parts.append(body[end + 2 : end + 2 + size])
        place = end + 4 + size
    return b"".join(parts)


class Player:
    def __init__(self, told: dict[str, Any]) -> None:
        self._told = told
        self._lengths = Lengths(**told["lengths"])
        self._rng = random.Random(told["seed"])
        text, said = tokenizer(), words()
        self._openings, self._results = (
            [taken(text, said, self._rng, tokens) for _ in range(_TEXTS)]
            for tokens in (self._lengths.first, self._lengths.result)
        )
        self._idle: deque[Conversation] = deque()
        self._opened = 0
        self._there = asyncio.Event()
        """All that are open at once."""

    async def read_keys(self) -> None:
        """Each becomes a conversation that is ready to ask."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            # Those that are there at the beginning are at different turns in the middle, too.
            number, self._opened = self._opened, self._opened + 1
            turns = self._lengths.turns
            if self._told["stagger"] and number < self._told["sessions"]:
                turns = 1 + number % turns
            opening = f"{number}: {self._openings[number % _TEXTS]}"
            conversation = Conversation(**json.loads(line), opening=opening, results=self._results, turns=turns)
            await conversation.connect()
            self._idle.append(conversation)
            if self._opened == self._told["sessions"]:
                self._there.set()

    async def open_loop(self) -> None:
        """Says {"first", "last", "sent"} in seconds beyond what was due, of each request after the warm-up."""
        await self._there.wait()
        rate, warm, seconds = self._told["rate"], self._told["warm_s"], self._told["seconds"]
        begin = time.perf_counter() + 0.2
        due, running = 0.0, []
        while (due := due + self._rng.expovariate(rate)) < warm + seconds:
            await asyncio.sleep(max(0.0, begin + due - time.perf_counter() - _SPIN_S))
            while time.perf_counter() < begin + due:  # noqa: ASYNC110 (no event says what time it is)
                await asyncio.sleep(0)
            if not self._idle:
                raise RuntimeError(f"{self._told['sessions']} requests are unanswered: the gateway does not keep up")
            running.append(asyncio.create_task(self._timed(self._idle.popleft(), begin + due)))
        times = await asyncio.gather(*running)
        after = [one for one in times if one[0] >= begin + warm]
        names = ("due", "sent", "first", "last")
        print(json.dumps({name: [one[place] for one in after] for place, name in enumerate(names)}), flush=True)

    async def _timed(self, conversation: Conversation, due: float) -> tuple[float, float, float, float]:
        """When it was due, and in seconds after that: sent, first and last byte."""
        sent = time.perf_counter()
        first, last, answer = await conversation.connection.ask(conversation.request)
        self._take(conversation, answer)
        return due, sent - due, first - due, last - due

    def _take(self, conversation: Conversation, answer: bytes) -> None:
        conversation.take(answer)
        if conversation.left:
            self._idle.append(conversation)
        else:
            conversation.connection.close()  # a gateway leaves it open for a while
            print(json.dumps({"ended": conversation.key}), flush=True)

    async def closed_loop(self) -> None:
        """All turns of all conversations, so many at a time, a turn of each before the next turn of any."""
        await self._there.wait()
        every, room = list(self._idle), asyncio.Semaphore(self._told["at_once"])

        async def turn(conversation: Conversation) -> None:
            async with room:
                _, _, answer = await conversation.connection.ask(conversation.request)
                conversation.take(answer)

        for number in range(self._lengths.turns):
            await asyncio.gather(*map(turn, every))
            print(json.dumps({"turn": number + 1}), flush=True)
        await asyncio.get_running_loop().create_future()  # until it is killed: the connections stay


async def play(told: dict[str, Any]) -> None:
    player = Player(told)
    reading = asyncio.create_task(player.read_keys())
    await (player.open_loop() if told["loop"] == "open" else player.closed_loop())
    reading.cancel()


def main() -> None:
    told = json.loads(sys.argv[1])
    open_many_files()
    # epoll waits whole milliseconds; select, which takes few connections, microseconds.
    with asyncio.Runner(
        loop_factory=lambda: asyncio.SelectorEventLoop(selectors.SelectSelector() if told["loop"] == "open" else None)
    ) as runner:
        runner.run(play(told))


if __name__ == "__main__":
    main()
