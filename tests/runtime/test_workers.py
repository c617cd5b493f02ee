"""Workers: what holds of them wherever they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from runtime_worker_kinds import Closing, Placed, Point, Probe, Spec, Unending

from headrace.runtime.inline import InlineRuntime
from headrace.runtime.local import awaited as answers
from headrace.runtime.local.awaited import WINDOW
from headrace.runtime.local.service import STANDING
from headrace.runtime.process.processes import Processes
from headrace.runtime.progress import Standing
from headrace.runtime.protocol import Runtime, WaitTimeout
from headrace.runtime.refs import Ref, RefLost
from headrace.runtime.virtual import run_virtually
from headrace.runtime.wire.copying import ENVIRONMENT
from headrace.runtime.wire.wire_types import WireError
from headrace.runtime.workers import Host, Placement, Silence, WorkerError, WorkerLost, Workers

Main = Callable[[Runtime], Coroutine[Any, Any, None]]
Run = Callable[[Main], None]

HERE = Placement(deadline_s=20)
A, B = Spec("a"), Spec("b")


def inline(*, copying: bool) -> Run:
    def run(main: Main) -> None:
        async def whole() -> None:
            runtime = InlineRuntime(copying=copying)
            try:
                await main(runtime)
            finally:
                await runtime.close()

        asyncio.run(whole())

    return run


class InProcesses(InlineRuntime):
    """Every worker has one."""

    async def start(self, kind: type[Any], specs: Sequence[object], where: Placement) -> Workers[Any]:
        return await super().start(kind, specs, replace(where, process=True))


def processes(main: Main, logs: Path | None = None) -> None:
    async def whole() -> None:
        apart = Processes("a test", logs=logs, packages=["runtime_worker_kinds"])
        runtime = InProcesses(apart=apart, copying=False)
        try:
            await main(runtime)
        finally:
            await runtime.close()

    asyncio.run(whole())


def actors(main: Main, *, near: bool = True) -> None:
    from headrace.runtime.ray.cluster import RayCluster

    async def whole() -> None:
        runtime = InProcesses(apart=RayCluster("a test", packages=["runtime_worker_kinds"], near=near), copying=False)
        try:
            await main(runtime)
        finally:
            await runtime.close()

    asyncio.run(whole())


RUNS: dict[str, Run] = {
    "inline": inline(copying=False),
    "copying": inline(copying=True),
    "virtual": run_virtually,
    "process": processes,
    "ray": actors,
    "ray_far": lambda main: actors(main, near=False),
}


FROM_RAY = ("ray", "ray_far")


def _run_of(request: pytest.FixtureRequest) -> Run:
    if request.param in FROM_RAY:
        request.getfixturevalue("one_ray")
    return RUNS[request.param]


ON_RAY = [pytest.param(name, marks=pytest.mark.slow) for name in FROM_RAY]


@pytest.fixture(params=[*(name for name in RUNS if name not in FROM_RAY), *ON_RAY])
def run(request: pytest.FixtureRequest) -> Run:
    return _run_of(request)


@pytest.fixture(params=["inline", "copying", "process", *ON_RAY])
def run_in_time(request: pytest.FixtureRequest) -> Run:
    """Where threads are."""
    return _run_of(request)


async def read(items: AsyncIterator[int], seen: list[int]) -> None:
    async for item in items:
        seen.append(item)  # noqa: PERF401 (up to the error)


async def gone(runtime: Runtime, ref: Ref) -> None:
    """Where its keeper is elsewhere, that it was freed has to be heard there."""
    for _ in range(200):
        try:
            await runtime.get(ref)
        except RefLost:
            return
        await runtime.clock.sleep(0.01)
    raise AssertionError(f"{ref} was freed")


def test_all_are_asked_or_one(run: Run) -> None:
    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A, B], HERE)
        assert await probes.call("word", what="words") == ["a of probe/0", "b of probe/1"]
        assert await probes.call("word", rank=1, what="a word") == ["b of probe/1"]
        assert await probes.call("mirrored", Point(1.0, 2.0), rank=0, what="a point") == [Point(2.0, 1.0)]
        assert [handle.worker for handle in probes.handles] == ["probe/0", "probe/1"]
        assert not probes.lost

    run(main)


def test_blocking_methods_are_on_the_worker_s_lane_and_async_ones_in_the_loop(run_in_time: Run) -> None:
    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A, B], HERE)
        where = await probes.call("where", what="threads")
        assert [name for _, name in where] == ["headrace-probe", "headrace-probe/1"]
        assert await probes.call("lane", what="own lanes") == ["headrace-probe", "headrace-probe/1"]
        assert set(await probes.call("loop_thread", what="threads")) <= {"MainThread", "AsyncIO Thread: default"}

    run_in_time(main)


@pytest.mark.parametrize("apart", ["process", *ON_RAY])
def test_in_a_process_of_its_own_a_worker_is_made_and_called_on_the_lanes_that_its_class_gives(
    apart: str, request: pytest.FixtureRequest
) -> None:
    if apart in FROM_RAY:
        request.getfixturevalue("one_ray")

    async def main(runtime: Runtime) -> None:
        placed = await runtime.start(Placed, [Spec("own"), Spec("")], HERE)
        own, plain = ("headrace-own placed", ["own placed"]), ("headrace-placed/1", [])
        assert await placed.call("made_in", what="threads") == [own, plain]
        assert await placed.call("where", what="threads") == [own, plain]
        with pytest.raises(WorkerError, match="placed/2 has no lanes"):
            await runtime.start(Placed, [Spec("own", fails=True)], HERE)

    RUNS[apart](main)


def test_in_the_run_s_process_lanes_are_as_the_run_has_them() -> None:
    async def main(runtime: Runtime) -> None:
        placed = await runtime.start(Placed, [Spec("own")], HERE)
        assert await placed.call("where", what="threads") == [("headrace-placed", [])]

    RUNS["inline"](main)


@pytest.mark.parametrize("apart", ["process", *ON_RAY])
def test_in_a_process_of_its_own_what_was_there_at_first_is_left_out_of_collections(
    apart: str, request: pytest.FixtureRequest
) -> None:
    """A full one over a million imported objects holds up every thread for a fifth of a second."""
    if apart in FROM_RAY:
        request.getfixturevalue("one_ray")

    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A], HERE)
        (seen,) = await probes.call("collections", what="what is left out")
        assert seen[0] > 10_000
        assert seen[1] > 700, "Python's own"

    RUNS[apart](main)


def test_a_worker_s_own_error_says_who_raised_what_and_where(run: Run) -> None:
    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A, B], HERE)
        with pytest.raises(WorkerError, match=r"^probe/1: KeyError: 'words'\nRaised in probe/1:") as raised:
            await probes.call("fail", "words", rank=1, what="a failure")
        assert (raised.value.rank, raised.value.type, raised.value.text) == (1, "KeyError", "'words'")
        assert "raise KeyError(words)" in raised.value.trace
        for method, type in (
            ("leave", "SystemExit"),
            ("leave_on_lane", "SystemExit"),
            ("panic", "Panic"),
            ("panic_on_lane", "Panic"),
            ("stop_iteration", "RuntimeError: coroutine raised StopIteration"),
            ("_told", "LookupError"),
            ("__init__", "LookupError"),
            ("missing", "LookupError"),
            ("count", "TypeError"),
        ):
            with pytest.raises(WorkerError, match=f"^probe/0: {type}"):
                await probes.call(method, rank=0, what="a failure")
        assert await probes.call("word", rank=1, what="a word") == ["b of probe/1"]

    run(main)


def test_if_one_fails_the_others_have_stopped_before_it_is_raised(run: Run) -> None:
    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A, B], HERE)

        async def one() -> None:
            await runtime.clock.sleep(0.5)  # until both have begun
            await probes.kill(1, "on purpose")

        killing = asyncio.ensure_future(one())
        with pytest.raises(WorkerLost, match="probe/1 is lost: on purpose") as raised:
            await probes.call("sleep", 60.0, what="sleep")
        assert raised.value.rank == 1
        await killing
        assert await probes.call("told", rank=0, what="what it saw") == [["cancelled"]]
        assert probes.lost == {1: "on purpose"}
        began = runtime.clock.now()
        with pytest.raises(WorkerLost, match="on purpose"):
            await probes.call("word", what="words")
        assert runtime.clock.now() - began < 3, "one that is told to stop before it has begun answers, too"

    run(main)


@pytest.mark.parametrize("kind", ["process", *ON_RAY])
def test_one_that_is_stuck_is_ended_with_the_reason_and_can_be_made_anew(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if kind in FROM_RAY:
        request.getfixturevalue("one_ray")

    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A, B], replace(HERE, limits={"layer": 0.5}))
        began = runtime.clock.now()
        hanging = asyncio.ensure_future(probes.call("hang", "layer", 60.0, rank=1, what="a pass"))
        while (standing := (await probes.call(STANDING, rank=1, what="how far it is"))[0]) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert standing in ([0, False], [1, False], [2, False])
        assert await probes.call(STANDING, rank=0, what="how far it is") == [None], "it does nothing"
        with pytest.raises(
            WorkerLost, match=r"probe/1 .*stuck: no layer has ended for .*\(runtime\.stuck\.layer_s\)"
        ) as lost:
            await hanging
        assert Standing.told_in(lost.value.reason) == Standing(2, waits=False)
        assert runtime.clock.now() - began < 15
        assert await probes.call("word", rank=0, what="a word") == ["a of probe/0"]
        await probes.restart(1)
        assert await probes.call("word", rank=1, what="a word") == ["b of probe/1"]
        assert await probes.call("block", 2.5, rank=1, what="work that says nothing") == ["blocked"]

    if kind in FROM_RAY:
        RUNS[kind](main)
    else:
        processes(main, logs=tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("one_ray")
def test_a_far_actor_whose_loop_does_not_turn_is_ended_with_the_reason_and_can_be_made_anew() -> None:
    """Of processes, and so of near actors: `test_process.py`."""

    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A], replace(HERE, silence=Silence(1.0, "runtime.stuck.event_loop_s")))
        (victim,) = await probes.call("pid", what="its process")
        words = r"probe/0 is lost: its event loop has not turned for \d+ s, of which 1 are allowed \(runtime\.stuck\."
        began = runtime.clock.now()
        with pytest.raises(WorkerLost, match=words):
            await probes.call("block_loop", 60.0, what="it")
        assert runtime.clock.now() - began < 15
        await probes.restart(0)
        assert not psutil.pid_exists(victim)
        assert await probes.call("word", what="words") == ["a of probe/0"]

    RUNS["ray_far"](main)


@pytest.mark.parametrize("method", ["note", "note_on_lane"])
def test_calls_begin_in_the_order_in_which_they_are_asked(run: Run, method: str) -> None:
    """Also where some bring much, and others that are asked next bring little."""

    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A], HERE)
        ballast = {0: bytes(600_000), 1: b"", 2: bytes(300_000), 3: b""}
        calls = [probes.call(method, number, ballast[number % 4], rank=0, what="a note") for number in range(100)]
        await asyncio.gather(*calls)
        assert await probes.call("told", what="what it saw") == [[*range(100)]]

    run(main)


def test_a_call_has_a_deadline_which_names_worker_and_purpose(run: Run) -> None:
    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A], HERE)
        with pytest.raises(WaitTimeout, match=r"waited 0\.1 s for a nap \(sleep of probe/0\)"):
            await probes.call("sleep", 60.0, what="a nap", seconds=0.1)
        assert await probes.call("told", what="what it saw") == [["cancelled"]]

    run(main)


def test_cancelling_tells_the_worker_and_returns_after_its_answer(run_in_time: Run) -> None:
    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A], HERE)
        for method, seconds, seen in (("sleep", 60.0, "cancelled"), ("block", 0.2, "blocked")):
            call = asyncio.ensure_future(probes.call(method, seconds, what="it"))
            await asyncio.sleep(0.05)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert (await probes.call("told", what="what it saw"))[0][-1] == seen

    run_in_time(main)


def test_one_that_is_cancelled_as_soon_as_it_is_asked_stops_however_much_it_brings(run_in_time: Run) -> None:
    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A], HERE)
        for _ in range(10):
            call = asyncio.ensure_future(probes.call("sleep", 60.0, bytes(3_000_000), what="it", seconds=5))
            for _ in range(10):
                await asyncio.sleep(0)
            call.cancel()
            began = time.monotonic()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert time.monotonic() - began < 4
        assert await probes.call("word", what="words") == ["a of probe/0"]

    run_in_time(main)


def test_what_has_not_begun_is_not_waited_for_and_never_begins(run_in_time: Run, tmp_path: Path) -> None:
    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A], HERE)
        long = asyncio.ensure_future(probes.call("held", str(tmp_path / "goes on"), what="it"))
        await asyncio.sleep(0.05)
        queued = asyncio.ensure_future(probes.call("tell", "queued", what="it"))
        await asyncio.sleep(0.05)
        queued.cancel()
        with pytest.raises(asyncio.CancelledError):
            await queued
        assert not long.done()
        (tmp_path / "goes on").touch()
        await long
        assert await probes.call("told", what="what it saw") == [["held"]]

    run_in_time(main)


def test_a_worker_that_does_not_even_stop_is_lost(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "STOP_S", 0.1)

    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A, B], HERE)
        with pytest.raises(WorkerLost, match=r"probe/0 is lost: it was told to stop patience \(stubborn of probe/0\)"):
            await probes.call("stubborn", rank=0, what="patience", seconds=0.1)
        assert list(probes.lost) == [0]
        assert await probes.call("word", rank=1, what="a word") == ["b of probe/1"]

    run(main)


def test_items_come_in_order_until_the_end_or_the_error(run: Run) -> None:
    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A], HERE)
        for method in ("count", "count_blocking"):
            assert [item async for item in probes.stream(method, 50, rank=0, what="numbers")] == list(range(50))
            assert (await probes.call("told", what="what it saw"))[0][-1] == "closed"
        seen: list[int] = []
        with pytest.raises(WorkerError, match="ValueError: no more"):
            await read(probes.stream("count_and_fail", 3, rank=0, what="numbers"), seen)
        assert seen == [0, 1, 2]
        with pytest.raises(WorkerError, match="TypeError: word yields nothing; call it"):
            await read(probes.stream("word", rank=0, what="numbers"), seen)

    run(main)


def test_leaving_a_stream_aborts_it_and_a_worker_is_few_items_ahead(run: Run) -> None:
    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A], HERE)
        for method in ("count", "count_blocking"):
            before = len((await probes.call("told", what="what it saw"))[0])
            async with aclosing(probes.stream(method, 10**6, rank=0, what="numbers")) as numbers:
                async for number in numbers:
                    if number == 9:
                        break
                await runtime.clock.sleep(0.2)
            told = (await probes.call("told", what="what it saw"))[0][before:]
            assert told[-1] == "closed"
            assert 10 <= len(told) <= 10 + WINDOW + 3

    run(main)


def test_every_item_has_a_deadline(run: Run) -> None:
    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A], HERE)
        seen: list[int] = []
        with pytest.raises(WaitTimeout, match=r"numbers \(slowly of probe/0\)"):
            await read(probes.stream("slowly", 60.0, rank=0, what="numbers", seconds=0.1), seen)
        assert seen == [0]
        assert not probes.lost

    run(main)


def test_workers_call_each_other_by_handle(run: Run) -> None:
    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A, B], HERE)
        other = probes.handles[1]
        assert await probes.call("ask", other, "word", rank=0, what="a question") == ["b of probe/1"]
        assert [item async for item in probes.stream("relay", other, 40, rank=0, what="numbers")] == list(range(40))
        with pytest.raises(WorkerError, match=r"probe/0: WorkerError: probe/1: KeyError: 'x'"):
            await probes.call("ask", other, "fail", "x", rank=0, what="a question")
        await probes.kill(1, "on purpose")
        with pytest.raises(WorkerError, match="probe/0: WorkerLost: probe/1 is lost"):
            await probes.call("ask", other, "word", rank=0, what="a question")

    run(main)


@pytest.mark.parametrize("kind", ["process", pytest.param("ray_far", marks=pytest.mark.slow)])
def test_what_a_worker_asks_of_another_ends_with_it(kind: str, request: pytest.FixtureRequest) -> None:
    if kind in FROM_RAY:
        request.getfixturevalue("one_ray")

    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A, B], HERE)
        other = probes.handles[1]
        full = probes.stream("read_on", other, "count", 10**6, rank=0, what="numbers")
        slow = probes.stream("read_on", other, "slowly", 60.0, rank=0, what="numbers")
        assert [await anext(full), await anext(slow)] == [0, 0]
        call = asyncio.ensure_future(probes.call("ask", other, "sleep", 60.0, rank=0, what="a question"))
        await runtime.clock.sleep(0.5)
        (told,) = await probes.call("told", rank=1, what="what it saw")
        assert "closed" not in told, "who reads slowly is waited for"
        with pytest.raises(WorkerLost):
            await probes.call("die", rank=0, what="its end")
        async with asyncio.timeout(10):
            while not {"closed", "slow closed", "cancelled"} <= {*told}:
                await runtime.clock.sleep(0.1)
                (told,) = await probes.call("told", rank=1, what="what it saw")
        for asked in (call, anext(slow)):
            with pytest.raises(WorkerLost):
                await asked
        await full.aclose()
        assert await probes.call("word", rank=1, what="a word") == ["b of probe/1"]

    RUNS[kind](main)


def test_refs_are_read_by_all_and_lost_with_their_keeper(run: Run) -> None:
    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A, B], HERE)
        for size in (10, 100_000):
            (ref,) = await probes.call("keep", size, rank=0, what="a ref")
            assert (ref.keeper, ref.columns) == ("probe/0", ("numbers", "text"))
            total = float(np.arange(size, dtype=np.float32).sum())
            for method in ("read", "read_blocking"):
                assert await probes.call(method, ref, what="the sum") == [total, total]
            assert (await runtime.get(ref))["text"] == "a"
            mine = runtime.put({"numbers": np.ones(size, np.float32)})
            assert await probes.call("read", mine, what="the sum") == [size, size]
            with pytest.raises(KeyError):
                await runtime.get(mine, ["letters"])
            runtime.free(mine)
            with pytest.raises(RefLost):
                await runtime.get(mine)
            unread = runtime.put({"numbers": np.ones(size, np.float32)})
            runtime.free(unread)
            with pytest.raises(WorkerError, match=r"RefLost: .* does not keep the columns numbers"):
                await probes.call("read", unread, rank=0, what="the sum")
            await probes.call("drop", ref, rank=1, what="an end")
            await gone(runtime, ref)

        (ref,) = await probes.call("keep", 10, rank=0, what="a ref")
        await probes.restart(0)
        (other,) = await probes.call("keep", 10, rank=0, what="a ref")
        assert other != ref
        with pytest.raises(RefLost):
            await runtime.get(ref)
        with pytest.raises(RefLost):
            await runtime.get(Ref("nobody/0", 0, ("numbers",)))
        runtime.free(Ref("nobody/0", 0, ("numbers",)))

    run(main)


def test_a_worker_is_made_anew_from_its_spec(run: Run) -> None:
    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A, B], HERE)
        await probes.call("tell", 1, what="a word")
        call = asyncio.ensure_future(probes.call("sleep", 60.0, rank=1, what="sleep"))
        await runtime.clock.sleep(0.05)
        await probes.restart(1)
        with pytest.raises(WorkerLost, match="probe/1 is lost: it is made anew"):
            await call
        assert await probes.call("told", what="what it saw") == [[1], []]
        assert await probes.call("word", what="words") == ["a of probe/0", "b of probe/1"]
        assert not probes.lost

    run(main)


def test_a_worker_that_cannot_be_made_ends_the_others(run: Run) -> None:
    async def main(runtime: Runtime) -> None:
        with pytest.raises(WorkerError, match="probe/1: ValueError: b cannot be made"):
            await runtime.start(Probe, [A, Spec("b", fails=True)], HERE)
        assert await (await runtime.start(Probe, [A], HERE)).call("word", what="a word") == ["a of probe/2"]
        assert await (await runtime.start(Probe, [A], HERE)).call("word", what="a word") == ["a of probe/3"]
        with pytest.raises(ValueError, match="no spec is given"):
            await runtime.start(Closing, [], HERE)

    run(main)


def test_one_may_be_added_and_one_may_leave(run: Run) -> None:
    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A, Spec("b")], HERE)
        assert await probes.add(Spec("c")) == 2
        assert await probes.call("word", what="words") == ["a of probe/0", "b of probe/1", "c of probe/2"]
        assert [handle.worker for handle in probes.handles] == ["probe/0", "probe/1", "probe/2"]
        await probes.leave(1)
        await probes.leave(1)
        assert not probes.lost
        assert await probes.call("word", what="words") == ["a of probe/0", "c of probe/2"]
        with pytest.raises(WorkerLost):
            await probes.call("word", rank=1, what="a word")
        await probes.restart(2)
        with pytest.raises(WorkerError, match="probe/3: ValueError: d cannot be made"):
            await probes.add(Spec("d", fails=True))
        assert await probes.add(Spec("e")) == 3
        assert await probes.call("word", rank=3, what="a word") == ["e of probe/4"]

    run(main)


def test_one_that_leaves_while_it_is_made_anew_ends_once_it_is_and_is_made_no_more(run: Run) -> None:
    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A, B], HERE)
        again = asyncio.ensure_future(probes.restart(1))
        await asyncio.sleep(0)
        await probes.leave(1)
        assert again.done()
        await again
        with pytest.raises(WorkerLost, match="probe/1 is lost: it has left"):
            await probes.restart(1)
        with pytest.raises(WorkerLost):
            await probes.call("word", rank=1, what="a word")
        assert not probes.lost
        assert await probes.call("word", what="words") == ["a of probe/0"]

    run(main)


def test_one_whose_leave_was_given_up_is_closed_with_the_runtime(run: Run, tmp_path: Path) -> None:
    async def main(runtime: Runtime) -> None:
        workers = await runtime.start(Closing, [str(tmp_path / "said")] * 2, HERE)
        again = asyncio.ensure_future(workers.restart(1))
        await asyncio.sleep(0)
        leaving = asyncio.ensure_future(workers.leave(1))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(again, leaving, return_exceptions=True)
        await runtime.close()

    run(main)
    assert (tmp_path / "said").read_text() == "closed\nclosed\n"


def test_each_end_that_fails_is_told_with_its_worker_and_what_it_raised(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(runtime: Runtime) -> None:
        await runtime.start(Unending, [True, False, True], HERE)
        await runtime.close()

    run(main)
    told = [record.getMessage() for record in caplog.records if record.name == "headrace.runtime.local.place"]
    assert told == [f"at the end of {name}: {name}: KeyError: 'lane'" for name in ("unending/0", "unending/2")]


def test_workers_are_closed_with_the_runtime(run: Run, tmp_path: Path) -> None:
    async def main(runtime: Runtime) -> None:
        await runtime.start(Closing, [str(tmp_path / "said")] * 2, HERE)
        await runtime.close()

    run(main)
    assert (tmp_path / "said").read_text() == "closed\nclosed\n"


def test_what_is_no_plain_data_is_found_where_it_is_copied() -> None:
    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A], HERE)
        with pytest.raises(WireError, match=r"the arguments of probe/0\.same\[0\]\['a'\] is a function"):
            await probes.call("same", {"a": lambda: 1}, what="it")
        words = r"probe/0: WireError: the answer of probe/0\.no_plain_data\['a'\]\[0\] is a object"
        with pytest.raises(WorkerError, match=words):
            await probes.call("no_plain_data", what="it")
        with pytest.raises(WireError, match=r"the columns\['a'\] is a set"):
            runtime.put({"a": {1}})
        with pytest.raises(WireError, match=r"the spec of closing/0 is a .*Path"):
            await runtime.start(Closing, [Path()], HERE)
        given = [1]
        await probes.call("tell", given, what="it")
        given.append(2)
        assert await probes.call("told", what="what it saw") == [[[1]]]
        array = np.zeros(3)
        ref = runtime.put({"array": array})
        array[0] = 1.0
        assert (await runtime.get(ref))["array"].tolist() == [0.0, 0.0, 0.0]

    RUNS["copying"](main)


def test_the_environment_asks_for_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        runtime = InlineRuntime()
        runtime.put({"a": {1}})
        monkeypatch.setenv(ENVIRONMENT, "1")
        with pytest.raises(WireError):
            InlineRuntime().put({"a": {1}})
        InlineRuntime(copying=False).put({"a": {1}})

    monkeypatch.delenv(ENVIRONMENT, raising=False)
    asyncio.run(main())


@pytest.mark.parametrize("where", ["inline", "virtual"])
def test_what_a_worker_spawned_ends_with_it(where: str) -> None:
    async def main(runtime: Runtime) -> None:
        probes = await runtime.start(Probe, [A], HERE)
        await probes.call("spawn", what="a task")
        await runtime.clock.sleep(0.01)
        assert any("sleeper" in task.get_name() for task in asyncio.all_tasks())
        await probes.kill(0, "on purpose")
        await runtime.clock.sleep(0.01)
        assert not any("sleeper" in task.get_name() for task in asyncio.all_tasks())

    RUNS[where](main)


class Loading(Probe):
    """One that loads a model: what it sets meanwhile is the process's."""

    kind = "loading"
    now = most = 0

    def __init__(self, spec: Spec, host: Host) -> None:
        Loading.now += 1
        Loading.most = max(Loading.most, Loading.now)
        time.sleep(0.02)
        Loading.now -= 1
        super().__init__(spec, host)


class LoadingToo(Loading):
    kind = "loading_too"


def test_in_one_process_no_worker_is_made_while_another_is() -> None:
    async def main(runtime: Runtime) -> None:
        await asyncio.gather(runtime.start(Loading, [A, B], HERE), runtime.start(LoadingToo, [A, B], HERE))
        assert Loading.most == 1

    inline(copying=False)(main)
