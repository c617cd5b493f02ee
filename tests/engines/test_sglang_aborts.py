"""When SGLang is told of requests that are aborted while it is paused: one that it holds then hears of the first abort
alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np

from headrace.engines.protocol import GenerateRequest, SamplingParams, SwapMode
from headrace.engines.servers.sglang import SglangDialect
from headrace.engines.servers.sglang_answer import server_id

CHUNK = {"output_ids": [4], "meta_info": {"completion_tokens": 1, "output_token_logprobs": [[-0.4, 4, None]]}}


class Asked:
    """In the place of HTTP. `has_begun`: requests that a token comes of; no other comes."""

    url = "http://here"

    def __init__(self, *has_begun: str) -> None:
        self.has_begun = [server_id(name) for name in has_begun]
        self.calls: list[tuple[str, str]] = []
        self.goes_on = asyncio.Event()
        """A token comes of the others."""

    async def call(self, method: str, path: str, body: Any = None, **_: Any) -> None:
        self.calls.append((path, body.get("rid", "")))

    async def events(self, path: str, body: Any, **_: Any) -> AsyncGenerator[Any]:
        if body["rid"] in self.has_begun or await self.goes_on.wait():
            yield {**CHUNK, "meta_info": {**CHUNK["meta_info"], "finish_reason": None}}
        await asyncio.Event().wait()

    @property
    def aborted(self) -> list[str]:
        return [name for path, name in self.calls if path == "/abort_request"]


class Late(Asked):
    """What is asked while the server is told to go on is asked of one that is paused still."""

    async def call(self, method: str, path: str, body: Any = None, **how: Any) -> None:
        await super().call(method, path, body, **how)
        if path == "/continue_generation":
            await self.goes_on.wait()


def test_what_is_aborted_as_the_server_is_told_to_go_on_waits_too() -> None:
    async def run() -> None:
        http = Late()
        dialect = SglangDialect(http, 50, None)  # type: ignore[arg-type]
        reading = asyncio.ensure_future(read(dialect, "held"))
        await asyncio.sleep(0)
        await dialect.pause(SwapMode.RECOMPUTE)
        resuming = asyncio.ensure_future(dialect.resume())
        await asyncio.sleep(0)
        await dialect.abort(["held"])
        assert http.aborted == []
        http.goes_on.set()
        await resuming
        await asyncio.sleep(0.01)
        assert http.aborted == [server_id("held")]
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    asyncio.run(run())


async def read(dialect: SglangDialect, name: str) -> None:
    asked = GenerateRequest(name, np.array([1], np.int32), SamplingParams(max_new_tokens=9), noise_key=0)
    async for _ in dialect.stream(asked):
        pass


def test_what_has_no_token_is_aborted_once_the_server_goes_on() -> None:
    async def run() -> None:
        http = Asked("begun")
        dialect = SglangDialect(http, 50, None)  # type: ignore[arg-type]
        reading = {name: asyncio.ensure_future(read(dialect, name)) for name in ("begun", "held", "left")}
        await asyncio.sleep(0)
        await dialect.pause(SwapMode.RECOMPUTE)
        for _ in range(2):
            await dialect.abort(["begun", "held", "left"])
        assert http.aborted == [server_id("begun")] * 2
        reading["left"].cancel()
        await asyncio.sleep(0.01)
        await dialect.resume()
        assert http.calls[-1] == ("/continue_generation", ""), "it wakes what it held one by one"
        http.goes_on.set()
        await asyncio.sleep(0.01)
        assert http.calls[-1] == ("/abort_request", server_id("held"))
        await dialect.abort(["held"])
        assert http.aborted[2:] == [server_id("held")] * 2, "while it goes on all are told at once"
        for task in reading.values():
            task.cancel()
        await asyncio.gather(*reading.values(), return_exceptions=True)

    asyncio.run(run())
