"""Worker processes: what a kill, a stop, an exit and a flood cost, and that nothing stays."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from runtime_worker_kinds import Probe, Spec

from headrace.runtime.inline import InlineRuntime
from headrace.runtime.local import awaited as answers
from headrace.runtime.process import remote_worker
from headrace.runtime.process.boot import class_at, path_of
from headrace.runtime.process.frames import EMPTY, Frame, Kind, read_frame, to_bytes
from headrace.runtime.process.processes import Processes
from headrace.runtime.process.shared_memory import Segments
from headrace.runtime.process.site import Site, site_parent
from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.refs import RefLost
from headrace.runtime.wire.wire_format import pack
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Placement, Silence, WorkerError, WorkerLost, Workers

PACKAGES = ["headrace", "runtime_worker_kinds"]
SUM = float(np.arange(100_000, dtype=np.float32).sum())
RUN = f"a test in process {os.getpid()}"
"""No other's: tests run in several processes at once."""
APART = Placement(process=True, deadline_s=20, start_s=20)


@asynccontextmanager
async def probes(
    count: int = 1, where: Placement = APART, logs: Path | None = None
) -> AsyncIterator[tuple[InlineRuntime, Workers[Probe]]]:
    runtime = InlineRuntime(apart=Processes(RUN, logs=logs, packages=PACKAGES), copying=False)
    try:
        yield runtime, await runtime.start(Probe, [Spec(word) for word in "abcd"[:count]], where)
    finally:
        await runtime.close()


async def pid(of: Workers[Probe], rank: int = 0) -> int:
    return (await of.call("where", rank=rank, what="a pid"))[0][0]  # type: ignore[no-any-return]


def sites(run: str) -> list[str]:
    """Folders in memory of this run's processes."""
    digest = hashlib.sha256(run.encode()).hexdigest()[:8]
    return sorted(path.name for path in site_parent().glob(f"headrace-{os.getuid()}-{digest}-*"))


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        await asyncio.sleep(0.02)


def test_a_killed_worker_loses_its_calls_streams_and_refs_and_nobody_elses() -> None:
    async def main() -> None:
        async with probes(2) as (runtime, workers):
            (ref,) = await workers.call("keep", 100_000, rank=0, what="a ref")
            (other,) = await workers.call("keep", 100_000, rank=1, what="a ref")
            call = asyncio.ensure_future(workers.call("sleep", 60.0, rank=0, what="sleep"))
            blocked = asyncio.ensure_future(workers.call("block", 60.0, rank=0, what="work"))
            beside = asyncio.ensure_future(workers.call("sleep", 0.5, rank=1, what="sleep"))
            async with aclosing(workers.stream("slowly", 60.0, rank=0, what="numbers")) as numbers:
                assert await anext(numbers) == 0
                began = time.monotonic()
                os.kill(await pid_beside(workers), signal.SIGKILL)
                with pytest.raises(WorkerLost, match=r"probe/0 is lost: its process ended with signal SIGKILL"):
                    await anext(numbers)
            for each in (call, blocked):
                with pytest.raises(WorkerLost, match=r"probe/0 is lost: its process ended with signal SIGKILL"):
                    await each
            assert time.monotonic() - began < 20
            assert await beside == ["slept"]
            assert list(workers.lost) == [0]
            with pytest.raises(RefLost):
                await runtime.get(ref)
            with pytest.raises(WorkerError, match="RefLost"):
                await workers.call("read", ref, rank=1, what="a sum")
            assert (await runtime.get(other))["numbers"].shape == (100_000,)
            await workers.restart(0)
            assert not workers.lost
            assert await workers.call("word", what="words") == ["a of probe/0", "b of probe/1"]
            assert await workers.call("read", other, rank=0, what="a sum") == [SUM]
            with pytest.raises(RefLost):
                await runtime.get(ref)

    async def pid_beside(workers: Workers[Probe]) -> int:
        """Its lane is busy."""
        (pids,) = await workers.call("pid", rank=0, what="a pid")
        return int(pids)

    asyncio.run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="what a process has open is asked of /proc")
def test_what_a_worker_starts_has_neither_its_listener_nor_its_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by uvloop, which closes nothing in a child: Ray's actors have it where it is installed."""
    pytest.importorskip("uvloop")
    (tmp_path / "sitecustomize.py").write_text(
        "import asyncio, uvloop\nasyncio.set_event_loop_policy(uvloop.EventLoopPolicy())\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))

    async def main() -> None:
        async with probes() as (_, workers):
            assert await workers.call("handed_on", what="what is open") == [["uvloop"]]

    asyncio.run(main())


def test_a_worker_that_asks_a_killed_one_hears_of_it() -> None:
    async def main() -> None:
        async with probes(2) as (_, workers):
            other = workers.handles[1]
            asking = asyncio.ensure_future(workers.call("ask", other, "sleep", 60.0, rank=0, what="a question"))
            victim = await pid(workers, 1)
            await asyncio.sleep(0.2)  # until the question is there
            os.kill(victim, signal.SIGKILL)
            with pytest.raises(WorkerError, match="probe/0: WorkerLost: probe/1 is lost"):
                await asking
            with pytest.raises(WorkerError, match="probe/0: WorkerLost"):
                await workers.call("ask", other, "word", rank=0, what="a question")
            await workers.restart(1)
            assert await workers.call("ask", other, "word", rank=0, what="a question") == ["b of probe/1"]

    asyncio.run(main())


def test_the_end_of_a_worker_is_heard_of_without_a_call(tmp_path: Path) -> None:
    async def main() -> None:
        async with probes(1, logs=tmp_path) as (_, workers):
            await workers.call("say", "farewell", 1, what="words")
            waiting = asyncio.ensure_future(workers.changed.wait(InlineRuntime().clock, 10, "an end"))
            await asyncio.sleep(0)
            with pytest.raises(
                WorkerLost, match=r"its process ended with exit code 7; its last words \(.*probe-0\.log\)"
            ):
                await workers.call("die", what="an end")
            await waiting
            assert "farewell" in workers.lost[0]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("Traceback:\n  one line\nValueError: 7\n", r"ValueError: 7"),
        ("a first line\n" + "x" * 100_000, "x" * 297 + r"\.\.\."),
        ("a first line\n" + "y" * 300 + "\n \n", "y" * 300),
        ("50%|##\r100%|####", r"100%\|####"),
        (" \n", None),
    ],
    ids=["a traceback", "a flood", "the longest", "a bar", "nothing"],
)
def test_the_last_words_of_a_worker_are_its_last_line(tmp_path: Path, said: str, words: str | None) -> None:
    async def main() -> None:
        async with probes(1, logs=tmp_path) as (_, workers):
            await workers.call("say", said, 1, what="words")
            told = "" if words is None else rf"; its last words \(.*probe-0\.log\): {words}"
            with pytest.raises(WorkerLost, match=rf"its process ended with exit code 7{told}$"):
                await workers.call("die", what="an end")

    asyncio.run(main())


def test_an_exit_in_the_midst_of_a_stream() -> None:
    async def main() -> None:
        async with probes() as (_, workers):
            numbers = workers.stream("die_slowly", rank=0, what="numbers")
            assert await anext(numbers) == 0
            with pytest.raises(WorkerLost, match="exit code 7"):
                await anext(numbers)

    asyncio.run(main())


def test_a_process_that_ends_after_its_connection_says_with_what() -> None:
    async def main() -> None:
        async with probes() as (_, workers):
            cut = asyncio.ensure_future(workers.call("cut", 1.2, what="an end"))
            await asyncio.sleep(0.6)
            assert not cut.done()
            assert not workers.lost
            late = [asyncio.ensure_future(workers.call("word", what="words")) for _ in range(3)]
            for each in (cut, *late):
                with pytest.raises(WorkerLost, match=r"probe/0 is lost: its process ended with exit code 3$"):
                    await each
            await workers.restart(0)
            assert await workers.call("word", what="words") == ["a of probe/0"]

    asyncio.run(main())


def test_a_process_whose_tasks_are_all_cancelled_ends_though_it_asks_another(tmp_path: Path) -> None:
    async def main() -> None:
        async with probes(2, logs=tmp_path) as (_, workers):
            other = workers.handles[1]
            await workers.call("ask", other, "word", rank=0, what="a question")  # they know each other
            with suppress(WorkerError, WorkerLost):  # it may be answered yet
                await workers.call("cancel_all_and_ask", other, "sleep", 60.0, rank=0, what="an end")
            await until(lambda: 0 in workers.lost, 4.0)
            assert workers.lost[0].startswith("its process ended with exit code 1")

    asyncio.run(main())


def test_a_process_that_does_not_end_after_its_connection_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_worker, "_REASON_S", 0.2)

    async def main() -> None:
        async with probes() as (_, workers):
            victim = await pid(workers)
            with pytest.raises(WorkerLost, match=r"its connection ended; its process had not ended 0\.2 s later$"):
                await workers.call("cut", 60.0, what="an end")
            await until(lambda: not psutil.pid_exists(victim))

    asyncio.run(main())


def test_a_stopped_worker_is_named_by_the_deadline_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "STOP_S", 0.2)

    async def main() -> None:
        async with probes(2) as (_, workers):
            victim = await pid(workers)
            os.kill(victim, signal.SIGSTOP)
            words = r"probe/0 is lost: it was told to stop words \(word of probe/0\), and had not after 0\.2 s"
            with pytest.raises(WorkerLost, match=words) as raised:
                await workers.call("word", rank=0, what="words", seconds=0.3)
            assert isinstance(raised.value.__cause__, WaitTimeout)
            await until(lambda: not psutil.pid_exists(victim))
            assert await workers.call("word", rank=1, what="words") == ["b of probe/1"]

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["stop_self", "block_loop"])
def test_a_worker_whose_loop_does_not_turn_is_ended(method: str) -> None:
    async def main() -> None:
        where = Placement(process=True, deadline_s=60, start_s=20, silence=Silence(1.0, "a.key"))
        async with probes(1, where) as (_, workers):
            await asyncio.sleep(1.5)
            assert not workers.lost, "one that does nothing is not silent"
            began = time.monotonic()
            words = r"probe/0 is lost: its event loop has not turned for \d+ s, of which 1 are allowed \(a\.key\)"
            with pytest.raises(WorkerLost, match=words):
                await workers.call(method, *([60.0] if method == "block_loop" else []), what="it")
            assert time.monotonic() - began < 20

    asyncio.run(main())


def test_what_a_worker_prints_is_in_its_log_and_never_holds_it_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with probes(2, logs=tmp_path) as (_, workers):
            await workers.call("say", "x" * 100, 20_000, rank=0, what="a flood")
            await workers.call("say", "hello", 1, rank=1, what="words")
            assert (tmp_path / "probe-0.log").stat().st_size == 2 * 101 * 20_000
            assert (tmp_path / "probe-1.log").read_text() == "hello\nhello\n"

    asyncio.run(main())


def test_big_arrays_cross_and_leave_nothing() -> None:
    async def main() -> None:
        async with probes(2) as (runtime, workers):
            processes = runtime._place._apart
            assert isinstance(processes, Processes)
            folder = processes.folder
            big = np.random.default_rng(0).standard_normal(1_500_000)
            for value in (big, big[:20_000], [big[:100], {"a": big.reshape(1000, -1)}]):
                (back,) = await workers.call("same", value, rank=0, what="it")
                if isinstance(value, list):
                    assert np.array_equal(back[1]["a"], value[1]["a"])
                else:
                    assert np.array_equal(back, value)
                    back[0] = 0.0  # nobody else's
            own = [path for path in folder.rglob("*") if path.is_file()]
            assert [path.name for path in own] == ["lock"]
            refs = [(await workers.call("keep", 100_000, rank=0, what="a ref"))[0] for _ in range(3)]
            assert len([path for path in folder.rglob("*") if path.is_file()]) == 4
            read = (await runtime.get(refs[0]))["numbers"]
            read[0] = 7.0
            assert (await runtime.get(refs[0]))["numbers"][0] == 0.0
            for ref in refs:
                runtime.free(ref)
            await until(lambda: len([path for path in folder.rglob("*") if path.is_file()]) == 1)
            assert read[1] == 1.0, "what is mapped stays"
            (ref,) = await workers.call("keep", 100_000, rank=0, what="a ref")
            await workers.kill(0, "on purpose")
            await workers.restart(0)
            assert [path.name for path in folder.rglob("*") if path.is_file()] == ["lock"]
            with pytest.raises(RefLost):
                await runtime.get(ref)

    asyncio.run(main())


def test_inline_workers_and_processes_reach_each_other() -> None:
    async def main() -> None:
        async with probes(1) as (runtime, workers):
            mine = runtime.put({"numbers": np.ones(300_000, np.float32)})
            assert await workers.call("read", mine, what="a sum") == [300_000.0]

            class Here(Probe):
                kind = "here"

            here = await runtime.start(Here, [Spec("h")], Placement(deadline_s=20))
            there, near = workers.handles[0], here.handles[0]
            assert await workers.call("ask", near, "word", what="a question") == ["h of here/0"]
            assert await here.call("ask", there, "word", what="a question") == ["a of probe/0"]
            assert [n async for n in workers.stream("relay", near, 40, rank=0, what="numbers")] == list(range(40))
            assert [n async for n in here.stream("relay", there, 40, rank=0, what="numbers")] == list(range(40))
            for keeper, reader in ((here, workers), (workers, here)):
                (ref,) = await keeper.call("keep", 100_000, rank=0, what="a ref")
                for method in ("read", "read_blocking"):
                    assert await reader.call(method, ref, rank=0, what="a sum") == [SUM]
            with pytest.raises(WorkerError, match=r"await host\.get"):
                await workers.call("read_in_loop", mine, what="a sum")

    asyncio.run(main())


def test_a_worker_process_imports_neither_torch_nor_transformers_and_says_its_name(tmp_path: Path) -> None:
    async def main() -> None:
        where = Placement(process=True, threads=1, deadline_s=20, start_s=20)
        async with probes(1, where) as (_, workers):
            (modules,) = await workers.call("modules", what="modules")
            assert not {"torch", "transformers"} & set(modules)
            assert await workers.call("threads", what="threads") == [(1, "1")]
            worker = await pid(workers)
            for columns, words in (("args=", "headrace probe/0"), ("comm=", "headrace")):
                assert ps(columns, worker).startswith(words)

    def ps(columns: str, worker: int) -> str:
        command = ["ps", "-o", columns, "-p", str(worker)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    asyncio.run(main())


def test_a_worker_process_does_not_look_for_garbage_in_what_it_was_made_of() -> None:
    async def main() -> None:
        async with probes() as (_, workers):
            (objects,) = await workers.call("left_alone_by_the_collector", what="objects")
            assert objects > 10_000  # modules that it imported

    asyncio.run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it has no other name")
def test_without_setproctitle_a_process_has_the_beginning_of_its_name() -> None:
    code = (
        "import sys; sys.modules['setproctitle'] = None\n"
        "from headrace.runtime.process.identity import name_process; name_process('probe/0')\n"
        "print(open('/proc/self/comm').read())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "headrace probe/"


PARENT = """
import asyncio, os, sys
from runtime_worker_kinds import Probe, Spec
from headrace.runtime.inline import InlineRuntime
from headrace.runtime.process.frames import EMPTY, Frame, Kind, read_frame, to_bytes
from headrace.runtime.process.processes import Processes
from headrace.runtime.wire.wire_format import pack
from headrace.runtime.wire.wire_types import WireTypes
from headrace.runtime.workers import Placement

async def main():
    runtime = InlineRuntime(apart=Processes("another", packages=["runtime_worker_kinds"]))
    workers = await runtime.start(Probe, [Spec("a"), Spec("b")], Placement(process=True))
    pids = [pid for pid, _ in await workers.call("where", what="pids")]
    await workers.call("keep", 100_000, what="refs")
    if sys.argv[1] == "stopped":
        os.kill(pids[0], 19)
    print(os.getpid(), *pids, flush=True)
    await workers.call("block", 60.0, rank=1, what="work")

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("stopped", ["stopped", "running"])
def test_workers_end_with_a_killed_parent_and_nothing_stays(tmp_path: Path, stopped: str) -> None:
    before = sites("another")
    here = str(Path(__file__).parents[1] / "helpers")
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, stopped],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([here, *filter(None, sys.path)])},
    )
    assert process.stdout is not None
    _, *workers = map(int, process.stdout.readline().split())
    during = set(sites("another")) - set(before)
    assert len(workers) == 2
    assert len(during) == 1
    process.kill()
    process.wait()
    asyncio.run(until(lambda: not any(map(psutil.pid_exists, workers))))
    asyncio.run(until(lambda: not during & set(sites("another"))))


_WITH_A_FORK = """
import os, sys, time
from headrace.runtime.process.site import Site
site = Site("forked")
fork = os.fork()
if fork == 0:
    time.sleep(60)
    os._exit(0)
print(site.folder, fork, flush=True)
if sys.argv[1] == "closes":
    site.close()
    print("closed", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("ends", ["closes", "is killed"])
def test_a_fork_of_the_runs_process_holds_nothing_up_that_ends_with_it(ends: str) -> None:
    """As those of a pool of processes that a reward function made, which outlive a kill of the run."""
    process = subprocess.Popen([sys.executable, "-c", _WITH_A_FORK, ends], stdout=subprocess.PIPE, text=True)
    fork = None
    try:
        assert process.stdout is not None
        folder, number = process.stdout.readline().split()
        fork = psutil.Process(int(number))
        if ends == "closes":
            reading = ThreadPoolExecutor(1).submit(process.stdout.readline)
            assert reading.result(4.0) == "closed\n"
        else:
            process.kill()
            process.wait()
        end = time.monotonic() + 10
        while Path(folder).exists():
            assert time.monotonic() < end
            time.sleep(0.02)
        assert fork.is_running()
    finally:
        process.kill()
        process.wait()
        if fork is not None:
            fork.kill()


def test_the_next_start_sweeps_what_a_killed_runtime_and_janitor_left(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from headrace.runtime.process.site import Site; import time\n"
            "site = Site('dead'); print(site.folder, site._janitor.pid, flush=True); time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    folder, janitor = process.stdout.readline().split()
    (Path(folder) / "left").write_bytes(b"x")
    os.kill(int(janitor), signal.SIGKILL)
    mine = Site("mine")
    assert Path(folder).exists(), "who lives is left alone"
    mine.close()
    process.kill()
    process.wait()
    assert Path(folder).exists()
    mine = Site("mine")
    assert not Path(folder).exists()
    assert oct(mine.folder.stat().st_mode & 0o777) == "0o700"
    mine.close()
    assert not mine.folder.exists()


def test_only_classes_of_our_packages_run_in_a_process() -> None:
    for path, words in (
        ("os:system", "os:system is not under headrace"),
        ("headracer.x:Y", "is not under headrace"),
        ("headrace.runtime.inline:Nobody", "there is no class"),
        ("headrace.runtime.inline:InlineRuntime.close", "is no class at the top of its module"),
        ("headrace.runtime.together:together", "there is no class"),
    ):
        with pytest.raises(ValueError, match=words):
            class_at(path, ["headrace"])
    assert path_of(InlineRuntime, ["headrace"]) == "headrace.runtime.inline:InlineRuntime"

    async def main() -> None:
        runtime = InlineRuntime(apart=Processes(RUN))
        with pytest.raises(ValueError, match="runtime_worker_kinds:Probe is not under headrace"):
            await runtime.start(Probe, [Spec("a")], APART)
        await runtime.close()
        with pytest.raises(ValueError, match="this runtime was given no place for it"):
            await InlineRuntime().start(Probe, [Spec("a")], APART)

    asyncio.run(main())


def test_a_worker_that_is_too_long_in_the_making_is_ended() -> None:
    async def main() -> None:
        runtime = InlineRuntime(apart=Processes(RUN, packages=PACKAGES))
        where = Placement(process=True, start_s=1.5)
        began = time.monotonic()
        with pytest.raises(WorkerLost, match=r"probe/1 is lost: it was not made within 1\.5 s"):
            await runtime.start(Probe, [Spec("a"), Spec("b", hangs_s=60.0)], where)
        assert time.monotonic() - began < 10
        assert not [child for child in psutil.Process().children() if "headrace" in child.name()]
        await runtime.close()

    asyncio.run(main())


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("after_s", [0.0, 3.0], ids=["at once", "as it loads"])
def test_one_that_is_made_and_not_wanted_any_more_is_ended_at_once(anew: bool, after_s: float) -> None:
    async def main() -> None:
        async with probes(2, replace(APART, start_s=120)) as (_, workers):
            began = time.monotonic()
            slow = Spec("slow", hangs_s=100.0)
            if anew:
                workers._members[1]._spec = slow  # type: ignore[attr-defined]
            making = asyncio.ensure_future(workers.restart(1) if anew else workers.add(slow))
            await asyncio.sleep(after_s)
            making.cancel()
            with pytest.raises(asyncio.CancelledError):
                await making
            await workers.leave(1)
            assert time.monotonic() - began < 60
            left = [await pid(workers)]
            await until(lambda: [each.pid for each in psutil.Process().children() if is_worker(each)] == left)
            (site,) = sites(RUN)
            assert not [*(site_parent() / site).glob("probe-1*")]
            assert await workers.add(Spec("another")) == 2

    def is_worker(process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            return "probe/" in " ".join(process.cmdline())
        return False

    asyncio.run(main())


def test_processes_are_begun_and_ended_by_a_loop_that_is_not_the_main_thread_s() -> None:
    async def main() -> None:
        async with probes() as (_, workers):
            assert await workers.call("word", what="words") == ["a of probe/0"]

    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, main()).result(20)


def test_full_shared_memory_is_told_with_the_mend(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match=r"12 bytes do not fit into shared memory, where \d+ are free") as raised:
        Segments(tmp_path / "a").write([memoryview(b"x" * 12)])
    assert raised.value.errno == errno.ENOSPC
    assert not list((tmp_path / "a").iterdir())


def test_a_worker_leaves_signals_to_its_parent_and_what_it_starts_does_not() -> None:
    async def main() -> None:
        async with probes() as (_, workers):
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(await pid(workers), number)
            assert await workers.call("word", what="words") == ["a of probe/0"]
            assert await workers.call("started_and_ended", what="a program") == [-signal.SIGTERM]

    asyncio.run(main())


def test_small_shared_memory_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(total=64 << 20))
    assert site_parent() == Path(tempfile.gettempdir())


def test_a_call_that_is_stopped_before_it_has_begun_is_answered() -> None:
    async def main() -> None:
        async with probes() as (_, workers):
            path = Path(workers.handles[0].address)
            reader, writer = await asyncio.open_unix_connection(path)
            call = Frame(Kind.CALL, 3, pack((60.0,), WireTypes()), "probe/0", "sleep")
            writer.writelines([*to_bytes(call), *to_bytes(Frame(Kind.STOP, 3, EMPTY))])
            answer = await asyncio.wait_for(read_frame(reader, path.parent), 5)
            assert answer is not None
            assert (answer.kind, answer.call) == (Kind.ERROR, 3)
            writer.close()

    asyncio.run(main())


def test_a_stranger_on_the_socket_harms_nobody() -> None:
    async def main() -> None:
        async with probes() as (_, workers):
            path = Path(workers.handles[0].address)
            for said in (b"\xff" * 100, b"GET / HTTP/1.1\r\n\r\n", b"\x02\x00\x00\x00\x00\x00\x00\x00\x91\xc0"):
                reader, writer = await asyncio.open_unix_connection(path)
                writer.write(said)
                assert await reader.read() == b""
                writer.close()
            assert await workers.call("word", what="words") == ["a of probe/0"]

    asyncio.run(main())


def test_a_temporary_folder_with_too_long_a_path_is_refused_with_the_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("headrace.runtime.process.site.site_parent", lambda: deep)
    with pytest.raises(OSError, match="set TMPDIR to a shorter one"):
        Site("a run")
    assert not list(deep.iterdir())


@pytest.mark.slow
def test_a_worker_that_is_lost_while_it_is_made_is_made_anew_a_few_times(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).touch()

    async def main() -> None:
        async with probes() as (runtime, _):
            dies = Spec("d", dies=str(tmp_path))
            with pytest.raises(WorkerLost, match=r"probe/1 is lost: .*exit code 3.* \(lost 3 times at its start\)"):
                await runtime.start(Probe, [dies], APART)
            (tmp_path / "d").touch()
            workers = await runtime.start(Probe, [dies, Spec("b")], APART)
            assert await workers.call("word", what="words") == ["d of probe/2", "b of probe/3"]

    asyncio.run(main())
