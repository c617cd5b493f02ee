"""Who may ask, how much, how long, and what becomes of a request whose client goes away."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from http_scripted import EOS, VOCAB, Reply, ScriptedEngine, byte_tokenizer, ids

from headrace.config import ConfigError
from headrace.engines.pool import EnginePool
from headrace.engines.protocol import FinishReason
from headrace.gateway import HttpServer, build_app, serve
from headrace.runtime.inline import SystemClock

TOKEN = "s3crét-token"


def application(engine: ScriptedEngine, **options: Any) -> Any:
    settings: dict[str, Any] = {
        "model_name": "tiny",
        "clock": SystemClock(),
        "token": None,
        "max_context": 64,
        "vocab_size": VOCAB,
        "eos_token_ids": (EOS,),
        "seed": 5,
        **options,
    }
    return build_app(EnginePool.of([engine], SystemClock()), byte_tokenizer(), **settings)


def run(
    engine: ScriptedEngine,
    test: Callable[[HttpServer, aiohttp.ClientSession], Awaitable[None]],
    **options: Any,
) -> None:
    async def main() -> None:
        server = await serve(application(engine, **options), "127.0.0.1", 0)
        try:
            async with aiohttp.ClientSession() as session:
                await asyncio.wait_for(test(server, session), 20)
        finally:
            await server.close()

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition did not come true in 5 s")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "example.org"])
def test_nothing_listens_beyond_loopback_without_a_token(host: str) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match="which others can reach, and no token is set"):
            await serve(application(ScriptedEngine([])), host, 0)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("host", "token", "status"),
    [
        *[(host, None, 403) for host in ("attacker.example", "localhost.attacker.example:1", "192.0.2.1", "0.0.0.0:8")],
        *[(host, None, 200) for host in ("localhost", "LocalHost:9", "127.0.0.7:8000", "[::1]:8000")],
        ("attacker.example", TOKEN, 200),
        ("agents.example:port", None, 400),
    ],
)
def test_without_a_token_only_whoever_names_loopback_is_answered(host: str, token: str | None, status: int) -> None:
    """A page that had its own name lead to this machine sends that name."""

    async def test(server: HttpServer, session: aiohttp.ClientSession) -> None:
        headers = {"Host": host} | ({} if token is None else {"Authorization": f"Bearer {token}"})
        for path in ("/v1/models", "/version"):
            async with session.get(server.address + path, headers=headers) as answer:
                assert answer.status == status
                told = await answer.json()
        if status == 403:
            assert told["error"]["code"] == "host_not_allowed"
            assert f"the header Host is {host!r}, which is not on loopback" in told["error"]["message"]
            assert "--token-env" in told["error"]["message"]
        async with session.get(server.address + "/health", headers=headers) as answer:
            assert answer.status == 200

    run(ScriptedEngine([]), test, token=token)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    async def main() -> None:
        server = await serve(application(ScriptedEngine([])), host, 0)
        async with aiohttp.ClientSession() as session, session.get(server.address + "/health") as answer:
            assert answer.status == 200
        await server.close()

    asyncio.run(main())


def test_other_hosts_may_listen_with_a_token_and_a_taken_port_is_named() -> None:
    async def main() -> None:
        server = await serve(application(ScriptedEngine([]), token=TOKEN), "0.0.0.0", 0)
        port = int(server.address.rsplit(":", 1)[1])
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: .*another host or port"):
            await serve(application(ScriptedEngine([])), "127.0.0.1", port)
        with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:70000"):
            await serve(application(ScriptedEngine([])), "127.0.0.1", 70000)
        await server.close()

    asyncio.run(main())


def test_every_path_but_health_wants_the_token() -> None:
    async def test(server: HttpServer, session: aiohttp.ClientSession) -> None:
        for path in ("/v1/models", "/version", "/nowhere"):
            for header in ("", TOKEN, "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN} "[:-2]):
                async with session.get(server.address + path, headers={"Authorization": header}) as answer:
                    assert answer.status == 401
                    assert (await answer.json())["error"]["code"] == "invalid_api_key"
        async with session.post(server.address + "/v1/completions", json={"prompt": "x"}) as answer:
            assert answer.status == 401
        for scheme in ("Bearer", "bearer", "BEARER"):
            headers = {"Authorization": f"{scheme} {TOKEN}"}
            async with session.get(server.address + "/v1/models", headers=headers) as answer:
                assert answer.status == 200
        async with session.get(server.address + "/health") as answer:
            assert answer.status == 200

    run(ScriptedEngine([]), test, token=TOKEN)


def test_unknown_paths_methods_models_and_types_are_errors_in_the_same_shape() -> None:
    async def test(server: HttpServer, session: aiohttp.ClientSession) -> None:
        for method, path, options, status in (
            ("GET", "/v1/embeddings", {}, 404),
            ("GET", "/v1/completions", {}, 405),
            ("POST", "/v1/completions", {"json": {"prompt": "x", "model": "gpt"}}, 404),
            ("POST", "/v1/completions", {"data": b"prompt=x"}, 415),
            ("POST", "/v1/completions", {"data": '{"prompt": "x"}', "headers": {"Content-Type": "text/plain"}}, 415),
            ("POST", "/v1/completions", {"data": b"{", "headers": {"Content-Type": "application/json"}}, 400),
            ("POST", "/v1/completions", {"data": b"\xff", "headers": {"Content-Type": "application/json"}}, 400),
            ("POST", "/v1/completions", {"data": b"[" * 99999, "headers": {"Content-Type": "application/json"}}, 400),
            (
                "POST",
                "/v1/completions",
                {"data": b'{"seed": NaN}', "headers": {"Content-Type": "application/json"}},
                400,
            ),
        ):
            async with session.request(method, server.address + path, **options) as answer:
                assert answer.status == status, path
                assert answer.content_type == "application/json"
                assert set((await answer.json())["error"]) == {"message", "type", "param", "code"}

    run(ScriptedEngine([]), test)


def test_body_beyond_the_limit_is_refused() -> None:
    async def test(server: HttpServer, session: aiohttp.ClientSession) -> None:
        body = json.dumps({"prompt": "x" * (2**24)}).encode()
        headers = {"Content-Type": "application/json"}
        async with session.post(server.address + "/v1/completions", data=body, headers=headers) as answer:
            assert answer.status == 413
            assert "too large" in (await answer.json())["error"]["message"]

    run(ScriptedEngine([]), test)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
@pytest.mark.parametrize("stream", [False, True])
def test_client_that_goes_away_aborts_its_request(path: str, stream: bool) -> None:
    engine = ScriptedEngine([Reply(ids("abc"), hangs_after=1 if stream else 0)])
    body: dict[str, Any] = {
        "/v1/completions": {"prompt": "x", "n": 2},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "n": 2},
        "/generate": {"prompt_ids": [1]},
    }[path]

    async def test(server: HttpServer, session: aiohttp.ClientSession) -> None:
        asking = asyncio.create_task(session.post(server.address + path, json={**body, "stream": stream}))
        await until(lambda: len(engine.requests) == body.get("n", 1))
        if stream:
            answer = await asking
            assert (await answer.content.readline()).startswith(b"data: ")
            answer.close()
        else:
            asking.cancel()
        ids_asked = sorted(request.request_id for request in engine.requests)
        await until(lambda: sorted(engine.aborted) == ids_asked and sorted(engine.closed) == ids_asked)

    run(engine, test)


@pytest.mark.slow
def test_client_that_does_not_read_is_dropped_at_the_deadline() -> None:
    # Far more than the sockets' buffers hold, in few events.
    engine = ScriptedEngine([Reply(ids("x" * 2_000_000), FinishReason.LENGTH, chunk=20_000)])

    async def test(server: HttpServer, session: aiohttp.ClientSession) -> None:
        host, port = server.address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=2**10)
        body = json.dumps({"prompt_ids": [1], "stream": True, "sampling": {"max_new_tokens": 60}})
        writer.write(
            f"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        assert await reader.readexactly(12) == b"HTTP/1.1 200"
        await until(lambda: bool(engine.closed))
        assert engine.aborted == engine.closed
        await until(lambda: server._runner.server is not None and not server._runner.server.connections)
        rest = b""
        with contextlib.suppress(ConnectionError):
            while more := await reader.read(2**16):
                rest += more
        assert b"HTTP/1.1" not in rest, "the stream is broken off, not answered a second time"
        writer.close()

    run(engine, test, timeout_s=2.0)


@pytest.mark.parametrize("stream", [False, True])
def test_request_that_takes_too_long_says_what_it_waited_for(stream: bool) -> None:
    engine = ScriptedEngine([Reply(ids("abc"), hangs_after=1 if stream else 0)])

    async def test(server: HttpServer, session: aiohttp.ClientSession) -> None:
        body = {"prompt_ids": [1], "stream": stream}
        async with session.post(server.address + "/generate", json=body) as answer:
            assert answer.status == (200 if stream else 504)
            text = await answer.text()
            assert "for tokens of request http-1-0-0; giving up" in text
            assert '"code":"timeout"' in text.replace(" ", "")
        assert engine.aborted == engine.closed == ["http-1-0-0.0"]

    run(engine, test, timeout_s=0.2)


def test_closing_the_server_ends_what_is_running() -> None:
    engine = ScriptedEngine([Reply(ids("abc"), hangs_after=1)])

    async def main() -> None:
        server = await serve(application(engine, timeout_s=0.3), "127.0.0.1", 0)
        async with aiohttp.ClientSession() as session:
            answer = await session.post(server.address + "/generate", json={"prompt_ids": [1], "stream": True})
            await asyncio.wait_for(server.close(), 10)
            assert engine.aborted == ["http-1-0-0.0"]
            answer.close()

    asyncio.run(main())
