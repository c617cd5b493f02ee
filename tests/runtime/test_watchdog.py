"""The watchdog says where an event loop is blocked, and a second signal ends a process whatever its loop does."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.runtime.watchdogs.dumps import Frame, blocked_at, stacks
from headrace.runtime.watchdogs.loop_watch import BEAT_S, BLOCKED_S, SETTLE_S, LoopWatch

STANDARD = os.path.dirname(os.__file__)
ASYNCIO = f"{STANDARD}/asyncio/base_events.py"
LOOP = f'  File "{ASYNCIO}", line 1922 in _run_once\n  File "{ASYNCIO}", line 607 in run_forever\n'
MAIN, LANE = 0x7FC982A5CB80, 0x7FC982000700


def dump(main: str, lane: str = f'  File "{STANDARD}/queue.py", line 9 in get\n') -> str:
    """As `faulthandler` writes it: the newest thread first, in each the most recent call first."""
    return (
        f"Timeout (0:00:05)!\nThread 0x{LANE:016x} (most recent call first):\n{lane}\n"
        f"Thread 0x{MAIN:016x} (most recent call first):\n{main}"
    )


def at(main: str, *lane: str) -> str | None:
    text = dump(main, *lane)
    return blocked_at(stacks(text), MAIN, {"/home/me/think.py": "rollout.workflow"})


def test_a_dump_is_read_by_thread() -> None:
    threads = stacks(dump('  File "/home/me/a b.py", line 3 in <lambda>\n  ...\n'))
    assert threads[MAIN] == [Frame("/home/me/a b.py", 3, "<lambda>")]
    assert set(threads) == {MAIN, LANE}


def test_the_place_is_the_users_innermost_line_and_what_it_calls() -> None:
    stack = (
        f'  File "{os.__file__}", line 99 in read\n'
        '  File "/home/me/client.py", line 12 in fetch\n'
        '  File "/home/me/think.py", line 7 in run\n'
        f"{LOOP}"
        '  File "/home/me/main.py", line 1 in <module>\n'
    )
    assert at(stack) == (
        f"at /home/me/client.py, line 12, in fetch (rollout.workflow), which is at {os.__file__}, line 99, in read"
    )


def test_code_that_no_key_names_and_code_that_is_not_the_users() -> None:
    assert (
        at(f'  File "/home/me/other.py", line 2 in f\n{LOOP}') == "at /home/me/other.py, line 2, in f (code of yours)"
    )
    installed = "/x/lib/python3.11/site-packages/torch/serialization.py"
    assert at(f'  File "{installed}", line 2 in f\n{LOOP}') == f"at {installed}, line 2, in f (installed code)"


def test_a_call_that_waits_as_the_loop_does_is_not_the_loop() -> None:
    waits = f'  File "{STANDARD}/selectors.py", line 468 in select\n  File "{STANDARD}/subprocess.py", line 9 in run\n'
    place = at(f'{waits}  File "/home/me/think.py", line 7 in run\n{LOOP}')
    assert place is not None
    assert place.startswith("at /home/me/think.py, line 7, in run (rollout.workflow)")


def test_code_that_goes_so_deep_that_the_dump_leaves_out_the_loop_is_told() -> None:
    deep = "".join('  File "/home/me/think.py", line 7 in again\n' for _ in range(100))
    assert at(f"{deep}  ...\n") == "at /home/me/think.py, line 7, in again (rollout.workflow)"


def test_a_loop_behind_a_hundred_threads_is_told_without_its_place() -> None:
    others = {thread: [] for thread in range(100)}
    assert "more than 100 threads" in str(blocked_at(others, MAIN, {}))
    assert blocked_at({1: []}, MAIN, {}) is None


def test_code_that_the_config_names_is_the_users_wherever_it_is_installed() -> None:
    installed = f"{STANDARD}/site-packages/agents/run.py"
    dumped = stacks(dump(f'  File "{installed}", line 2 in f\n{LOOP}'))
    assert (
        blocked_at(dumped, MAIN, {installed: "rollout.workflow"}) == f"at {installed}, line 2, in f (rollout.workflow)"
    )


WAITS = f'  File "{STANDARD}/selectors.py", line 468 in select\n{LOOP}'


def test_a_loop_at_rest_is_not_blocked_unless_another_thread_holds_the_lock() -> None:
    assert at(WAITS) is None
    yours = '  File "/home/me/think.py", line 40 in loss\n'
    assert at(WAITS, f'  File "{STANDARD}/threading.py", line 9 in wait\n{yours}') is None
    held = at(WAITS, yours)
    assert held is not None
    assert held.startswith("at /home/me/think.py, line 40, in loss (rollout.workflow)")
    assert "interpreter's lock" in held


def test_who_debugs_is_not_disturbed() -> None:
    stopped = f'  File "{STANDARD}/pdb.py", line 3 in interaction\n  File "/home/me/think.py", line 7 in run\n'
    assert at(stopped + LOOP) is None


def test_a_block_is_told_at_once_then_ever_more_seldom_and_when_it_is_over() -> None:
    watch = LoopWatch(0.0, ends_after_s=900)
    watch.beat(100.0)
    told = []
    for half_seconds in range(1, 100):
        now = 100.0 + half_seconds / 2
        if half_seconds % 10 == 0:  # `faulthandler` repeats itself every BLOCKED_S
            watch.dumped("at think.py", now)
        told += [(now - 100.0, notice) for notice in watch.notices(now)]
    assert [second for second, _ in told] == [7.0, 12.0, 22.0, 42.0], "two seconds after a dump"
    assert [notice.words for _, notice in told][:2] == [
        "the event loop has been blocked for 7 s, at think.py",
        "the event loop has been blocked for 12 s, at think.py",
    ]
    assert "await asyncio.to_thread" in told[0][1].mend
    assert {notice.kind for _, notice in told} == {"blocked"}
    (over,) = watch.beat(149.0)
    assert over.words == "the event loop goes on, which had been blocked for 49 s, at think.py"
    assert (over.kind, over.blocked_s) == ("went_on", 49.0)
    assert watch.beat(153.0) == []


def test_a_process_that_was_stopped_and_goes_on_was_not_blocked() -> None:
    """It dumps, since its timer is over, and beats, at the same moment."""
    watch = LoopWatch(0.0, ends_after_s=30)
    watch.dumped("at think.py", 60.0)
    assert watch.notices(60.0) == []
    assert watch.must_end(60.0) is None
    assert watch.beat(61.9) == []
    assert watch.notices(63.0) == []


def test_a_process_that_was_stopped_for_long_is_not_ended_where_it_beats_late() -> None:
    """Its dump is one, and bears out ten seconds."""
    watch = LoopWatch(0.0, ends_after_s=30)
    watch.dumped("at think.py", 1200.0)
    (told,) = watch.notices(1203.0)
    assert told.blocked_s == 10.0
    assert watch.must_end(1203.0) is None
    (over,) = watch.beat(1204.0)
    assert over.blocked_s == 10.0


def test_a_dump_is_asked_for_where_the_interpreter_gives_no_turn_and_again_each_time_that_it_has_not() -> None:
    watch = LoopWatch(0.0, ends_after_s=900.0)
    watch.turned(3.0)
    assert [at for at in (4.0, 7.9, 8.0, 8.5, 12.9, 13.1) if watch.asks(at)] == [8.0, 13.1]
    watch.beat(14.0)
    assert not watch.asks(18.5)
    watch.turned(19.0)  # the loop is blocked, and a thread looks
    assert not watch.asks(23.5)
    assert watch.asks(24.0)


def test_a_signal_that_the_loop_does_not_answer_is_told_and_the_second_one_ends_the_process() -> None:
    watch = LoopWatch(0.0, ends_after_s=900)
    watch.signalled(signal.SIGTERM, 1.0)
    assert watch.notices(2.5) == []
    (told,) = watch.notices(3.0)
    assert told.words == "told to stop by SIGTERM, but the event loop has not answered for 3 s"
    assert "second signal" in told.mend
    assert watch.must_end(1000.0) is None, "nothing is known to be blocked"
    watch.signalled(signal.SIGINT, 1001.0)
    assert watch.must_end(1001.0) is None, "it may do so by itself"
    assert watch.must_end(1003.0) is not None


def test_a_signal_that_the_loop_answers_is_not_spoken_of() -> None:
    watch = LoopWatch(0.0, ends_after_s=900)
    watch.signalled(signal.SIGTERM, 1.0)
    watch.beat(1.5)
    assert watch.notices(9.0) == []


def test_a_block_ends_the_process_in_the_end() -> None:
    watch = LoopWatch(0.0, ends_after_s=30)
    for second in range(5, 30, 5):
        watch.dumped("at think.py", float(second))
    assert watch.must_end(30.0) is None, "it has not been told"
    assert len(watch.notices(27.0)) == 1
    assert watch.must_end(29.9) is None
    end = watch.must_end(30.0)
    assert end is not None
    assert end.words == "the event loop has been blocked for 30 s (runtime.stall_timeout_s), at think.py"


@given(st.lists(st.tuples(st.sampled_from(["beat", "dump", "rest", "look"]), st.floats(0.01, 4.0)), max_size=80))
def test_nothing_is_told_of_a_loop_that_beats_in_time_or_is_never_seen_in_anything(events: list) -> None:
    watch, now, last_beat, dumped, dumps = LoopWatch(0.0, ends_after_s=20), 0.0, 0.0, False, 0
    for what, passed in events:
        now += passed
        if what == "beat":
            watch.beat(now)
            last_beat, dumped, dumps = now, False, 0
        elif what == "look":
            told = watch.notices(now)
            assert not told or (dumped and now - last_beat >= BLOCKED_S)
            if watch.must_end(now) is not None:
                assert dumped
                assert now - last_beat >= 20
                assert dumps >= 3
        else:
            watch.dumped("at f.py" if what == "dump" else None, now)
            dumped, dumps = what == "dump", dumps + 1
    assert BEAT_S + BLOCKED_S + SETTLE_S < 10, "seconds in which it is told"


CHILD = """
import asyncio, itertools, os, sys, time
from headrace.controller.stopping import StopRequest
from headrace.runtime.watchdogs.watchdog import LoopWatchdog

async def main():
    async with LoopWatchdog(owners={}, ends_after_s=900):
        with StopRequest() as stop:
            await asyncio.sleep(1.5)  # the first beat was seen
            print("there", flush=True)
            BLOCK
            print("blocked for a moment", flush=True)
            await stop.wait()
            print("stops", stop.reason, flush=True)

asyncio.run(main())
"""
IN_C = "sum(itertools.repeat(0, 10**13))"
"""Holds the interpreter's lock for a day, and looks at no signals."""


def child(block: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD.replace("BLOCK", block)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "there\n"
    return process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block", "second"),
    [("time.sleep(86400)", signal.SIGINT), ("while True: pass", signal.SIGTERM), (IN_C, signal.SIGINT)],
    ids=["sleeps", "spins", "in C"],
)
def test_a_second_signal_ends_the_process_whatever_the_loop_does(block: str, second: signal.Signals) -> None:
    process = child(block)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.send_signal(second)
    process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGKILL if block == IN_C else -second)


@pytest.mark.slow
@pytest.mark.parametrize("block", ["time.sleep(60)", "while True: pass", IN_C], ids=["sleeps", "spins", "in C"])
def test_where_the_loop_is_blocked_is_told_whoever_holds_the_interpreters_lock(block: str) -> None:
    process = child(block)
    assert process.stdout is not None
    said = process.stdout.readline()
    process.kill()
    process.communicate()
    assert "headrace: the event loop has been blocked for " in said
    assert "at <string>, line 11, in main" in said


BUSY = """import threading
            def deep(n):
                exec(compile("x = 1\\n" * 50, f"f{n}", "exec"), {})
                return n and deep(n - 1)
            def work():
                while True:
                    deep(10)
            for _ in range(6):
                threading.Thread(target=work, daemon=True).start()
            time.sleep(8)
            os.kill(os.getpid(), 15)"""


@pytest.mark.slow
def test_a_process_whose_threads_compute_while_the_loop_is_blocked_lives() -> None:
    """Who looks at their frames without the interpreter's lock reads what is none any more."""
    hurried = "import headrace.runtime.watchdogs.watchdog as w; w.BLOCKED_S = w.BEAT_S = 0.002"
    command = [sys.executable, "-c", f"{hurried}\n{CHILD.replace('BLOCK', BUSY)}"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert process.returncode == 0, process.stderr[-2000:]
    assert process.stdout.endswith("stops SIGTERM\n")


@pytest.mark.slow
def test_one_signal_is_a_request() -> None:
    process = child("")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.endswith("stops SIGINT\n")


FORKS = """if (pid := os.fork()) == 0:
                time.sleep(60)
                os._exit(0)
            await asyncio.sleep(0.5)
            os.kill(pid, 15)
            os.kill(pid, 15)
            assert os.waitpid(pid, 0)[1] == 15
            await asyncio.sleep(4)
            os.kill(os.getpid(), 15)"""


@pytest.mark.slow
def test_signals_of_a_fork_are_not_the_runs() -> None:
    """As those by which multiprocessing ends its workers."""
    out, _ = child(FORKS).communicate(timeout=60)
    assert out.endswith("stops SIGTERM\n"), out


@pytest.mark.slow
def test_the_watcher_ends_with_the_process(tmp_path: Path) -> None:
    process = child("time.sleep(86400)")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("no /proc here")
    (watcher,) = children.read_text().split()
    process.kill()
    process.communicate()
    for _ in range(600):
        if not Path(f"/proc/{watcher}").exists() or "watchdog" not in Path(f"/proc/{watcher}/cmdline").read_text():
            return
        subprocess.run(["sleep", "0.1"], check=True)
    raise AssertionError(json.dumps(Path(f"/proc/{watcher}/cmdline").read_text()))
