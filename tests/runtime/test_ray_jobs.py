"""`Jobs` against a job server of Ray's protocol whose answers are scripted, over HTTP; a cluster's own is in
test_submit.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType, web

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="pip install 'headrace[cluster]'")

Tail = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    def __init__(self) -> None:
        self.statuses: list[str] = []
        """The last one stays."""
        self.details: dict[str, Any] = {}
        self.tails: list[Tail] = []
        """The last one stays."""
        self.submitted: dict[str, Any] = {}
        self.is_silent = False

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": "4", "ray_version": "2.60.0", "ray_commit": ""})

    async def info(self, request: web.Request) -> web.Response:
        if self.is_silent:
            await asyncio.Event().wait()
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return web.json_response({"type": "SUBMISSION", "entrypoint": "", "status": status, **self.details})

    async def tail(self, request: web.Request) -> web.StreamResponse:
        return await (self.tails.pop(0) if len(self.tails) > 1 else self.tails[0])(request)

    async def package(self, request: web.Request) -> web.Response:
        return web.Response()

    async def submit(self, request: web.Request) -> web.Response:
        self.submitted = await request.json()
        return web.json_response({"job_id": "job", "submission_id": "job"})


def says(lines: str, then: str = "ends") -> Tail:
    async def tail(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if lines:
            await socket.send_str(lines)
        if then == "breaks":
            await asyncio.sleep(0.02)
            assert request.transport is not None
            request.transport.abort()
        elif then == "is silent":
            while (await socket.receive()).type == WSMsgType.TEXT:
                pass
        return socket

    return tail


async def refuses(request: web.Request) -> web.StreamResponse:
    return web.Response(status=503)


async def hangs_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


@asynccontextmanager
async def served(server: Server) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/api/version", server.version)
    app.router.add_get("/api/jobs/job", server.info)
    app.router.add_get("/api/jobs/job/logs/tail", server.tail)
    app.router.add_get("/api/packages/{protocol}/{name}", server.package)
    app.router.add_post("/api/jobs/", server.submit)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch, ray_imported: None) -> None:
    from headrace.runtime.ray import jobs

    monkeypatch.setattr(jobs, "_LOOK_S", 0.01)
    monkeypatch.setattr(jobs, "_QUIET_S", 0.2)


def followed(server: Server) -> tuple[int, str]:
    """Exit code and what was printed."""
    from headrace.runtime.ray.jobs import Jobs

    async def run() -> tuple[int, str]:
        said: list[str] = []
        async with served(server) as address:
            code = await (await Jobs.at(address)).follow("job", said.append)
        return code, "".join(said)

    return asyncio.run(run())


def test_a_way_that_breaks_now_and_then_is_taken_anew() -> None:
    server = Server()
    server.statuses = ["RUNNING"] * 9 + ["SUCCEEDED"]
    lines = [f"line {number}\n" for number in range(10)]
    for number in range(7):
        server.tails.append(says("".join(lines[: number + 1]), "breaks"))
        server.tails += [hangs_up] if number == 3 else []
    server.tails.append(says("".join(lines)))
    assert followed(server) == (0, "".join(lines))


@pytest.mark.parametrize("tail", [refuses, hangs_up])
def test_a_way_that_never_opens_is_told(tail: Tail) -> None:
    from headrace.runtime.ray.jobs import JobError

    server = Server()
    server.statuses, server.tails = ["RUNNING"], [tail]
    with pytest.raises(JobError, match=r"the job server at .* does not do it"):
        followed(server)


def test_what_a_job_printed_last_is_not_left_out_if_the_way_breaks_then() -> None:
    server = Server()
    server.statuses = ["SUCCEEDED"]
    server.tails = [says("one\n", "breaks"), says("one\ntwo\n")]
    assert followed(server) == (0, "one\ntwo\n")


def test_a_log_without_an_end_holds_nobody_once_the_job_has_ended() -> None:
    server = Server()
    server.statuses = ["RUNNING", "SUCCEEDED"]
    server.tails = [says("one\n", "is silent")]
    assert followed(server) == (0, "one\n")


def test_a_server_that_falls_silent_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.runtime.ray import jobs

    monkeypatch.setattr(jobs, "_STATUS_S", 0.5)
    server = Server()
    server.tails = [says("one\n", "is silent")]
    server.is_silent = True
    with pytest.raises(jobs.JobError, match="it has not answered for"):
        followed(server)


def test_one_that_accepts_and_says_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.runtime.ray import jobs

    monkeypatch.setattr(jobs, "_STATUS_S", 0.2)

    async def run() -> None:
        open_now: list[asyncio.StreamWriter] = []
        silent = await asyncio.start_server(lambda _, writer: open_now.append(writer), "127.0.0.1", 0)
        async with silent:
            with pytest.raises(jobs.JobError, match=r"it has not answered for 0.2 s; correct --address"):
                await jobs.Jobs.at(f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}")
            for writer in open_now:
                writer.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("details", "words"),
    [
        ({"driver_node_id": "0" * 56}, "was lost while it ran: the node is gone; submit it again with --resume"),
        ({}, "failed before it began: the node is gone"),
    ],
)
def test_a_job_without_an_exit_code_is_told_by_how_far_it_came(details: dict[str, str], words: str) -> None:
    from headrace.runtime.ray.jobs import JobError

    server = Server()
    server.statuses, server.tails = ["FAILED"], [says("")]
    server.details = {"message": "the node is gone", **details}
    with pytest.raises(JobError, match=words):
        followed(server)


def test_a_job_that_is_stopped_is_left_the_time_to_commit(tmp_path: Path) -> None:
    from headrace.runtime.ray import jobs

    (tmp_path / "config.yaml").write_text("")
    server = Server()

    async def run() -> None:
        async with served(server) as address:
            assert await (await jobs.Jobs.at(address)).submit("true", tmp_path) == "job"

    asyncio.run(run())
    left = server.submitted["runtime_env"]["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]
    assert 300 <= int(left) < jobs._STOP_S
