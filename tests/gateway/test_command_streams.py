"""What an agent that is a program reads and prints, with either kind of event loop."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_programs import inline, play_at_once, walled
from rollout_helpers import ScriptedEngine, says

from headrace.rollout.agent_command import AgentFailed, _run
from headrace.rollout.command_streams import command_streams
from headrace.runtime.inline import SystemClock

ECHO = "cat /dev/stdin >/dev/null; echo ok >/dev/stderr; echo 1 >/dev/stdout"
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    if request.param == "asyncio":
        return asyncio.new_event_loop
    made: Callable[[], asyncio.AbstractEventLoop] = pytest.importorskip("uvloop").new_event_loop
    return made


def run(loop: Callable[[], asyncio.AbstractEventLoop], code: str, given: bytes) -> tuple[int, bytes, bytes]:
    """A shell's, by the loop."""
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(asyncio.wait_for(shell(code, given), 20))


async def shell(code: str, given: bytes) -> tuple[int, bytes, bytes]:
    return await _run(["/bin/sh", "-c", code], "/nowhere", dict(os.environ), given, SystemClock())


@pytest.mark.parametrize("sandbox", [pytest.param("auto", marks=walled), "none"])
@pytest.mark.parametrize("ends", ["", "raise SystemExit(3)"])
def test_it_opens_its_streams_by_their_paths(
    loop: Callable[[], asyncio.AbstractEventLoop], sandbox: Any, ends: str
) -> None:
    code = f"import subprocess\nask('x')\nsubprocess.run(['sh', '-c', {ECHO!r}], check=True)\n{ends}"
    agent = inline(code, reward="stdout", sandbox=sandbox)
    if ends:
        with pytest.raises(AgentFailed, match="ended with exit status 3: ok"):
            play_at_once(agent, 1, ScriptedEngine(says("one")), loop=loop)
    else:
        ((only,),) = play_at_once(agent, 1, ScriptedEngine(says("one")), loop=loop)
        assert only.reward == 1.0


def test_of_much_all_is_read_and_the_last_is_kept(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    given = b"".join(b"%7d\n" % number for number in range(1 << 16))
    code, printed, errors = run(loop, "cat; echo err >&2", given)
    assert (code, printed, errors) == (0, given[-(1 << 16) :], b"err\n")


@pytest.mark.parametrize("code", ["exec <&-; sleep 0.2; echo 1", "echo 1"])
def test_one_that_does_not_read_is_not_to_blame(loop: Callable[[], asyncio.AbstractEventLoop], code: str) -> None:
    assert run(loop, code, bytes(1 << 20)) == (0, b"1\n", b"")


def test_one_that_prints_no_more_still_reads_all(loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path) -> None:
    run(loop, f"exec >&- 2>&-; sleep 0.2; wc -c >{tmp_path}/count", bytes(1 << 20))
    assert int((tmp_path / "count").read_text()) == 1 << 20


@on_linux
def test_nothing_stays_open(loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 50 that ended, of those that were given up, and of one that could not be started."""

    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    async def given_up() -> None:
        for _ in range(5):
            running = asyncio.create_task(shell("sleep 60", bytes(1 << 20)))
            await asyncio.sleep(0.05)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def not_started() -> None:
        with monkeypatch.context() as patched:
            patched.setattr("headrace.rollout.agent_command.guarded", lambda *a, **b: ["/nowhere/at-all"])
            with pytest.raises(FileNotFoundError):
                await shell("", b"")

    async def main() -> list[int]:
        counts = []
        for times in (1, 50):
            for _ in range(times):
                assert await shell("cat", b"told") == (0, b"told", b"")
            await given_up()
            await not_started()
            counts.append(count())
        return counts

    before = count()
    with asyncio.Runner(loop_factory=loop) as runner:
        first, last = runner.run(main())
    assert last == first
    assert count() == before


def test_streams_that_nobody_closes_are_waited_for_a_second(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """As where orphans cannot be found."""

    async def talk() -> tuple[bytes, bytes]:
        with command_streams() as streams:
            process = await asyncio.create_subprocess_exec(
                *("sh", "-c", "sleep 3 & echo out; echo err >&2; cat >/dev/null"),
                stdin=streams.stdin,
                stdout=streams.stdout,
                stderr=streams.stderr,
            )
            streams.hand_over()
            return await asyncio.wait_for(streams.talk(process, b"told\n", SystemClock()), 2.5)

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(talk()) == (b"out\n", b"err\n")
