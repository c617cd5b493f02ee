"""HTTP to a server: what an answer that is none is taken for."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from headrace.engines.servers.http import ServerGone, ServerHttp, ServerRefused
from headrace.runtime.inline import InlineRuntime


def test_a_page_of_html_is_told_on_one_line() -> None:
    page = "<!DOCTYPE HTML>\n<html>\n  <head>\n\t<title>Not found</title>" + "\n  <p>No such file.</p>" * 100
    said = str(ServerRefused("its version", "GET /version", 404, page))
    head = "its version: the server answered 404 to GET /version: "
    assert said.startswith(f"{head}<!DOCTYPE HTML> <html> <head> <title>Not found</title> <p>No such file.</p>")
    assert said.endswith("...")
    assert len(said) == len(head) + 300
    assert str(ServerRefused("x", "GET /", 500, " no\nroom ")) == "x: the server answered 500 to GET /: no room"


@pytest.mark.parametrize(
    ("status", "error"), [(400, ServerRefused), (404, ServerRefused), (500, ServerGone), (503, ServerGone)]
)
def test_a_stream_that_a_dying_server_refuses_is_gone_and_not_a_fault_of_the_request(
    status: int, error: type[Exception]
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text="its engine encountered an issue")

    async def run() -> None:
        runtime = InlineRuntime()
        app = web.Application()
        app.router.add_post("/generate", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        http = ServerHttp(f"http://127.0.0.1:{runner.addresses[0][1]}", runtime.clock)
        await http.open()
        try:
            words = f"request r: the server answered {status} to POST /generate: its engine encountered"
            with pytest.raises(error, match=words):
                async for _ in http.events("/generate", {}, what="request r"):
                    pass
        finally:
            await http.close()
            await runner.cleanup()
            await runtime.close()

    asyncio.run(run())
