"""Of processes that are nobody's children here: which one ends first, and when that is told."""

from __future__ import annotations

import asyncio
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest

from headrace.runtime.process.ends import first_to_end

_EXIT = {"x86_64": 60, "aarch64": 93}.get(platform.machine() if sys.platform == "linux" else "")
"""The system call that ends one thread."""
_IDLE = "import time; print(flush=True); time.sleep(60)"
_FIRST_THREAD_ENDS = """
import ctypes, sys, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print(flush=True)
sys.stdin.readline()
ctypes.CDLL(None).syscall({exit}, 0)
"""


@pytest.fixture
def begun() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    with ExitStack() as stack:
        yield processes
        for each in processes:
            stack.enter_context(each)
            each.kill()


def begin(processes: list[subprocess.Popen[str]], program: str) -> psutil.Process:
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True)
    processes.append(process)
    assert process.stdout is not None
    process.stdout.readline()
    return psutil.Process(process.pid)


def test_the_first_to_end_is_told_also_where_it_has_ended_already(begun: list[subprocess.Popen[str]]) -> None:
    one, two = begin(begun, _IDLE), begin(begun, _IDLE)

    async def main() -> None:
        ended = asyncio.ensure_future(first_to_end([one, two]))
        await asyncio.sleep(0.1)
        assert not ended.done()
        two.kill()
        assert await asyncio.wait_for(ended, 20) == two
        begun[1].wait(20)
        assert await asyncio.wait_for(first_to_end([one, two]), 20) == two

    asyncio.run(main())


@pytest.mark.skipif(_EXIT is None, reason="the number of the call is not known here")
def test_it_is_told_before_the_last_of_its_threads_has_ended(begun: list[subprocess.Popen[str]]) -> None:
    process = begin(begun, _FIRST_THREAD_ENDS.format(exit=_EXIT))

    async def main() -> None:
        ended = asyncio.ensure_future(first_to_end([process]))
        await asyncio.sleep(0.1)
        assert not ended.done()
        assert begun[0].stdin is not None
        begun[0].stdin.write("\n")
        begun[0].stdin.flush()
        assert await asyncio.wait_for(ended, 20) == process
        assert begun[0].poll() is None

    asyncio.run(main())
