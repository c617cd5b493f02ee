"""A server that a worker launches: a port that somebody else took, a token that is refused."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import ClientSession, web

from headrace.config.errors import ConfigError
from headrace.engines.protocol import EngineError, SwapMode
from headrace.engines.servers.dialect import Expected
from headrace.engines.servers.engine import Limits
from headrace.engines.servers.http import ServerHttp
from headrace.engines.servers.kinds import KINDS, ServerKind
from headrace.engines.servers.launch import CHECKED, ServerLaunch
from headrace.engines.servers.vllm import VllmDialect
from headrace.engines.servers.weight_sender import WeightSender
from headrace.roles.workers import server_engine
from headrace.roles.workers.server_engine import ServerEngineWorker, ServerSpec, given_at_once
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.ports import free_ports
from headrace.runtime.workers import Placement, WorkerError
from headrace.weights.addresses import own_address
from headrace.weights.plane import WeightOffer
from headrace.weights.swap_check import check_tokens
from headrace.weights.version import Version

SERVER = """
import http.server, mmap, socket, subprocess, sys
held = []
subprocess.Popen(["core::sleeper", "-c", "import time; time.sleep(60)"], executable=sys.executable)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.startswith("/share/"):
            file = open("/dev/shm/" + self.path.removeprefix("/share/"), "w+b")
            file.truncate(4096)
            held.append(mmap.mmap(file.fileno(), 4096) if "mapped" in self.path else file)
        if self.path.startswith("/listen/"):
            held.append(socket.create_server((self.path.removeprefix("/listen/"), 0)))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")
http.server.HTTPServer((sys.argv[2], int(sys.argv[1])), Handler).serve_forever()
"""


class Met(VllmDialect):
    async def meet(self, expected: Expected) -> None:
        pass


class Taking(Met):
    """A version: its server listens then where the offer's address says."""

    async def sampled(self) -> int | None:
        return None

    async def pause(self, mode: SwapMode) -> None:
        pass

    async def resume(self) -> None:
        pass

    async def load(self, offer: WeightOffer, name: str) -> None:
        await self._http.call("GET", f"/listen/{offer.address}", what="to listen", seconds=20.0)


KIND = ServerKind(
    lambda launch, port: [sys.executable, "-u", "-c", SERVER, str(port), launch.args.get("host", "127.0.0.1")],
    lambda launch, environment, folder: dict(environment),
    lambda launch, line: None,
    lambda http, vocab_size, services, sender: Met(http, vocab_size),
    "core::",
)


def spec(tmp_path: Path) -> ServerSpec:
    launch = ServerLaunch(sys.executable, "", "float32", 4, 64, seed=0, on_cpu=True, start_s=20.0)
    return ServerSpec("small", Limits(4, 64, 16, "float32"), Expected({}, 64, "float32"), launch, str(tmp_path / "log"))


@pytest.fixture
def taken() -> Iterator[int]:
    """A port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def started(given: ServerSpec) -> str:
    """The address of the server, once it is up."""

    async def main() -> str:
        runtime = InlineRuntime()
        try:
            workers = await runtime.start(ServerEngineWorker, [given], Placement())
            await workers.call("start", what="the server", seconds=30.0)
            worker = workers.here(0)
            assert isinstance(worker, ServerEngineWorker)
            assert worker._http is not None
            return worker._http.url
        finally:
            await runtime.close()

    return asyncio.run(main())


def test_a_port_that_somebody_took_is_not_insisted_on(
    tmp_path: Path, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, ports = server_engine.free_port(), [taken]
    monkeypatch.setattr(server_engine, "KINDS", {**KINDS, "small": KIND})
    monkeypatch.setattr(server_engine, "free_port", lambda: ports.pop() if ports else free)
    assert started(spec(tmp_path)) == f"http://127.0.0.1:{free}"
    assert "Address already in use" in (tmp_path / "log").read_text()
    monkeypatch.setattr(server_engine, "free_port", lambda: taken)
    with pytest.raises(WorkerError, match=r"EngineError: the server ended with exit status 1 before it was up"):
        started(spec(tmp_path))


def test_one_that_other_machines_may_reach_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_engine, "KINDS", {**KINDS, "small": KIND})
    given = spec(tmp_path)
    assert given.launch is not None
    given = replace(given, launch=replace(given.launch, args={"host": "0.0.0.0"}))
    with pytest.raises(WorkerError, match=r"ConfigError: the server .* listens at 0\.0\.0\.0:\d+, which other"):
        started(given)


def with_server(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    test: Callable[[ServerEngineWorker, psutil.Process], Awaitable[None]],
    kind: ServerKind = KIND,
    given: ServerSpec | None = None,
) -> None:
    """`test`: called with the worker of one that is up, and its core; then both end."""
    monkeypatch.setattr(server_engine, "KINDS", {**KINDS, "small": kind})

    async def main() -> None:
        runtime = InlineRuntime()
        worker = ServerEngineWorker(given or spec(tmp_path), runtime)  # type: ignore[arg-type]
        try:
            await worker.start()
            assert worker._server is not None
            (core,) = [each for each in worker._server._below() if each.cmdline()[0] == "core::sleeper"]
            await test(worker, core)
        finally:
            await worker.close()
            await runtime.close()

    asyncio.run(main())


@pytest.mark.parametrize("network", ["127.0.0.1", "192.0.2.1", "2001:db8::1"])
def test_weights_are_sent_from_the_machine_of_the_worker_by_the_address_that_it_has_on_the_trainers_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str
) -> None:
    """Which may be another machine than the trainer's: two of the addresses are no machine's."""
    try:
        own = own_address(network)
    except OSError:
        pytest.skip("no way leads there")
    sends_from = []

    def dialect(http: ServerHttp, vocab_size: int, services: Any, sender: WeightSender) -> Met:
        sends_from.append(sender.host)
        return Met(http, vocab_size)

    async def test(worker: ServerEngineWorker, core: psutil.Process) -> None:
        assert sends_from == [own]

    sending = replace(spec(tmp_path), weights_from=network)
    with_server(tmp_path, monkeypatch, test, replace(KIND, dialect=dialect), sending)


def test_a_network_to_which_no_way_leads_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_engine, "KINDS", {**KINDS, "small": KIND})
    words = r"ConfigError: weights cannot be sent over the network of no\.such\.invalid: .*; set weights\.host to"
    with pytest.raises(WorkerError, match=words):
        started(replace(spec(tmp_path), weights_from="no.such.invalid"))


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_one_that_other_machines_may_reach_once_it_took_weights_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    async def test(worker: ServerEngineWorker, core: psutil.Process) -> None:
        offer = WeightOffer(Version(0, 1), "memory", host, None)
        if host == "127.0.0.1":
            await worker.update(offer, SwapMode.RECOMPUTE)
            assert worker.state().failure is None
            return
        with pytest.raises(ConfigError, match=r"listens at 0\.0\.0\.0:\d+, which other machines may reach"):
            await worker.update(offer, SwapMode.RECOMPUTE)
        assert "which other machines may reach" in str(worker.state().failure)
        core.wait(5.0)

    taking = replace(KIND, dialect=lambda http, vocab_size, services, sender: Taking(http, vocab_size))
    with_server(tmp_path, monkeypatch, test, taking)


def test_whoever_wants_a_version_to_be_held_that_is_just_replaced_hears_so_once_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not that it is held."""
    comes = asyncio.Event()

    class Slow(Taking):
        async def load(self, offer: WeightOffer, name: str) -> None:
            await comes.wait()

    async def test(worker: ServerEngineWorker, core: psutil.Process) -> None:
        offer = WeightOffer(Version(0, 1), "memory", "", None)
        taking = asyncio.ensure_future(worker.update(offer, SwapMode.RECOMPUTE))
        pinning = asyncio.ensure_future(worker.pin("evaluator", Version(0, 0)))
        await asyncio.wait([pinning], timeout=0.2)
        assert not pinning.done()
        comes.set()
        with pytest.raises(EngineError, match="the engine has v1, and v0 was to be held"):
            await pinning
        await taking

    taking = replace(KIND, dialect=lambda http, vocab_size, services, sender: Slow(http, vocab_size))
    with_server(tmp_path, monkeypatch, test, taking)


def test_one_that_lost_its_core_is_dead_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own process serves on, and says that it is well."""

    async def test(worker: ServerEngineWorker, core: psutil.Process) -> None:
        assert worker._engine.failure is None
        core.kill()
        await asyncio.wait_for(worker._news.wait(), 20.0)
        assert f"the server lost its process {core.pid}" in str(worker._engine.failure)

    with_server(tmp_path, monkeypatch, test)


def test_what_a_dead_one_left_is_ended_before_anybody_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a broken stream tells of its death before its process has ended: who is told kills the worker."""

    async def test(worker: ServerEngineWorker, core: psutil.Process) -> None:
        left = tmp_path / "shared"
        left.write_text("memory")
        assert worker._server is not None
        worker._server._segments = [str(left)]
        worker._engine.fail(EngineError("its stream broke"))
        assert not left.exists(), "without a turn of the loop"
        core.wait(5.0)

    with_server(tmp_path, monkeypatch, test)


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="Linux has it")
@pytest.mark.parametrize("how", ["mapped", "opened"])
def test_memory_that_it_came_to_share_later_goes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """This server removes nothing itself."""
    shared = Path("/dev/shm") / f"psm_{how}-{os.getpid()}-{secrets.token_hex(4)}"

    async def test(worker: ServerEngineWorker, core: psutil.Process) -> None:
        assert worker._http is not None
        async with ClientSession() as client, client.get(f"{worker._http.url}/share/{shared.name}") as answer:
            assert answer.status == 200
        assert shared.exists()

    try:
        with_server(tmp_path, monkeypatch, test)
        assert not shared.exists()
    finally:
        shared.unlink(missing_ok=True)


def test_a_token_that_is_refused_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_engine, "KINDS", {**KINDS, "small": KIND})

    async def health(request: web.Request) -> web.Response:
        return web.json_response({}, status=200 if request.headers.get("Authorization") == "Bearer right" else 401)

    async def main() -> None:
        app = web.Application()
        app.router.add_get("/{any:.*}", health)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        given = replace(spec(tmp_path), launch=None, url=url)
        runtime = InlineRuntime()
        for token, words in ((None, "refuses who asks"), ("right", None), ("wrong", "refuses who asks")):
            worker = ServerEngineWorker(replace(given, token=token), runtime)  # type: ignore[arg-type]
            if words is None:
                await worker.start()
            else:
                with pytest.raises((ConfigError, EngineError), match=words):
                    await worker.start()
            await worker.close()
        await runtime.close()
        await runner.cleanup()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            404,
            r"ConfigError: the server at http://127\.0\.0\.1:\d+ is no vllm, .* answered 404 to GET /health",
        ),
        (
            503,
            r"EngineError: the server at http://127\.0\.0\.1:\d+ was not up within 1 s: .*503.*; start it, or correct",
        ),
        (
            None,
            r"EngineError: the server at http://127\.0\.0\.1:\d+ was not up within 1 s: .* does not answer: .*; start",
        ),
    ],
)
def test_one_that_is_attached_to_and_does_not_answer_well_is_told_by_its_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int | None, words: str
) -> None:
    monkeypatch.setattr(server_engine, "_ATTACHED_S", 1.0)

    async def health(request: web.Request) -> web.Response:
        assert status is not None
        return web.Response(status=status)

    async def main() -> None:
        app = web.Application()
        app.router.add_get("/health", health)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        if status is None:
            await runner.cleanup()
        runtime = InlineRuntime()
        try:
            given = replace(spec(tmp_path), kind="vllm", launch=None, url=url)
            workers = await runtime.start(ServerEngineWorker, [given], Placement())
            with pytest.raises(WorkerError, match=words):
                await workers.call("start", what="the server", seconds=30.0)
        finally:
            await runtime.close()
            await runner.cleanup()

    asyncio.run(main())


def test_ports_that_are_drawn_together_differ() -> None:
    assert len(set(free_ports(200))) == 200


@pytest.mark.parametrize(
    ("slots", "together", "given"),
    [(64, None, 64), (64, 72, 64), (64, 64, 56), (64, 1000, 64), (64, 16, 8), (64, 10, 5), (64, 1, 1)],
)
def test_a_server_is_given_fewer_than_it_computes_at_once_as_the_swap_check_is_beside_them(
    slots: int, together: int | None, given: int
) -> None:
    assert given_at_once(slots, together) == given


def test_the_swap_check_has_as_many_sequences_as_there_are_places_for_it() -> None:
    assert len(check_tokens(100, 4096)) == CHECKED
