"""Real child processes, and trusted rewards that do their worst: no sandbox, one process for all calls."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.config import ConfigError
from headrace.config.reward import RewardConfig
from headrace.experience.failures import failure_kind
from headrace.observe.durations import quantile
from headrace.rewards.outcome import RewardOutcome
from headrace.rewards.processes import slot
from headrace.rewards.processes.clearing import Clearing
from headrace.rewards.processes.reward_process import RewardProcess
from headrace.rewards.reward_pool import RewardPool, worker_count
from headrace.runtime.inline import SystemClock
from headrace.runtime.protocol import Clock

HOSTILE = '''
import asyncio, os, re, subprocess, sys, threading, time

def reward(response, row):
    """Does what the row says."""
    kind = row["kind"]
    if kind == "raise":
        raise ValueError("bad\\nnews")
    if kind == "sleep":
        time.sleep(60)
    if kind == "backtrack":
        re.match(r"(a+)+$", "a" * 64 + "b")
    if kind == "exit":
        os._exit(3)
    if kind == "sys.exit":
        sys.exit(4)
    if kind == "segfault":
        import ctypes
        ctypes.string_at(0)
    if kind == "nan":
        return float("nan")
    if kind == "vast":
        return 1e308
    if kind == "text":
        return "1.0"
    if kind == "none":
        return None
    if kind == "huge":
        return "x" * 50_000_000
    if kind == "huge error":
        raise ValueError("x" * 50_000_000)
    if kind == "bad repr":
        class Bad:
            def __repr__(self): raise RuntimeError("no repr")
        return Bad()
    if kind == "bad str":
        class BadError(Exception):
            def __str__(self): raise RuntimeError("no str")
        raise BadError
    if kind == "print":
        print("garbage" * 1000); sys.stdout.flush(); os.write(1, b"\\xff" * 70000); os.write(2, b"\\0" * 70000)
    if kind == "forge":
        for fd in range(3, 4096):
            try: os.write(fd, b"\\xff" * 4096)
            except OSError: pass
        time.sleep(60)
    if kind == "deaf":
        os.closerange(3, 4096)
        time.sleep(60)
    if kind == "recurse":
        def f(): return f()
        f()
    if kind == "child":
        child = subprocess.Popen(["sleep", "60"])
        open(row["pid_file"] + ".new", "w").write(str(child.pid))
        os.rename(row["pid_file"] + ".new", row["pid_file"])
        time.sleep(60)
    if kind == "fork":
        if os.fork() == 0:
            time.sleep(60)
        os._exit(5)
    if kind == "meet":
        open(f"{row['folder']}/{os.getpid()}", "w").close()
        end = time.monotonic() + 20
        while len(os.listdir(row["folder"])) < 3 and time.monotonic() < end:
            time.sleep(0.01)
        return len(os.listdir(row["folder"]))
    if kind == "pid":
        return os.getpid()
    return float(len(response))

async def later(response, row, *, prompt):
    await asyncio.sleep(row.get("s", 0))
    return len(prompt)

async def never(response, row):
    while True:
        await asyncio.sleep(1)

def two(a): return 0
'''


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    (tmp_path / "hostile.py").write_text(HOSTILE)
    return str(tmp_path / "hostile.py")


def children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


@asynccontextmanager
async def running(function: str, log_path: Path | None = None, **changes: Any) -> AsyncIterator[RewardPool]:
    config = RewardConfig(function=function, **{"timeout_s": 20.0, "trusted": True, "workers": 1, **changes})
    before = children()
    pool = RewardPool(config, clock=SystemClock(), log_path=log_path)
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()
        assert children() <= before, "a process was left behind"


def score_all(function: str, rows: list[dict[str, Any]], **changes: Any) -> list[RewardOutcome]:
    async def play() -> list[RewardOutcome]:
        async with running(function, **changes) as pool:
            return await asyncio.gather(*(pool.score("four", row, "prompt") for row in rows))

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("kind", "failure"),
    [
        ("raise", "reward_raised: ValueError: bad news (hostile.py, line 8)"),
        ("sys.exit", "reward_raised: SystemExit: 4 (hostile.py, line 16)"),
        ("recurse", "reward_raised: RecursionError: maximum recursion depth exceeded"),
        ("bad str", "reward_raised: BadError: (its message cannot be printed)"),
        ("huge error", "reward_raised: ValueError: xxxxx"),
        ("exit", "reward_died: the process ended with exit status 3"),
        ("fork", "reward_died: the process ended with exit status 5"),
        ("segfault", "reward_died: the process was killed by SIGSEGV"),
        ("forge", "reward_died: the process broke the protocol"),
        ("deaf", "reward_died: the process"),
        ("nan", "reward_nan: returned nan, which is not finite"),
        ("vast", "reward_nan: returned 1e+308, which is beyond 1e+15; scale rewards to about 1"),
        ("text", "reward_nan: returned '1.0' (str), which is not a number"),
        ("none", "reward_nan: returned None"),
        ("huge", "reward_nan: returned 'xxxxx"),
        ("bad repr", "reward_nan: returned <Bad instance"),
    ],
)
def test_a_bad_call_fails_alone_and_says_why(hostile: str, kind: str, failure: str) -> None:
    good: dict[str, Any] = {"kind": "good"}
    outcomes = score_all(f"{hostile}:reward", [good, {"kind": kind}, good, good])
    assert outcomes[1].value is None
    assert (outcomes[1].failure or "").startswith(failure)
    assert len(outcomes[1].failure or "") < 500
    assert [outcomes[i] for i in (0, 2, 3)] == [RewardOutcome(4.0)] * 3


@pytest.mark.parametrize("kind", ["sleep", "backtrack"])
def test_a_hanging_call_is_killed_and_the_place_is_free(hostile: str, kind: str) -> None:
    async def play() -> None:
        async with running(f"{hostile}:reward", timeout_s=0.5) as pool:
            began = time.monotonic()
            bad, good = await asyncio.gather(
                pool.score("four", {"kind": kind}, ""), pool.score("four", {"kind": "good"}, "")
            )
            assert bad == RewardOutcome(None, "reward_timeout: took longer than 0.5 s")
            assert good == RewardOutcome(4.0)
            assert time.monotonic() - began < 0.5 + 20

    asyncio.run(play())


@pytest.mark.slow
def test_time_waited_behind_other_calls_does_not_count(hostile: str) -> None:
    outcomes = score_all(f"{hostile}:later", [{"s": 0.5}] * 8, timeout_s=3.0)
    assert outcomes == [RewardOutcome(6.0)] * 8, "4 s in all, 0.5 s each"


@pytest.mark.slow
def test_every_call_is_timed_one_that_fails_too(hostile: str) -> None:
    async def play() -> dict[str, int]:
        async with running(f"{hostile}:later", timeout_s=3.0) as pool:
            await asyncio.gather(*(pool.score("four", {"s": seconds}, "p") for seconds in (0.3, 0.3, 60)))
            return dict(pool.times.counts)

    counts = asyncio.run(play())
    assert sum(counts.values()) == 3
    assert (quantile(counts, 0.5) or 0) >= 0.27
    assert (quantile(counts, 1.0) or 0) >= 2.8


def test_there_is_a_process_for_each_core_unless_it_is_said_how_many() -> None:
    assert worker_count(RewardConfig()) == len(os.sched_getaffinity(0))
    assert worker_count(RewardConfig(workers=3)) == 3


def test_an_async_reward_gets_its_prompt(hostile: str) -> None:
    assert score_all(f"{hostile}:later", [{}]) == [RewardOutcome(6.0)]


def test_an_async_reward_that_never_ends_is_killed(hostile: str) -> None:
    (outcome,) = score_all(f"{hostile}:never", [{}], timeout_s=0.3)
    assert outcome.failure == "reward_timeout: took longer than 0.3 s"


def test_what_the_user_prints_goes_to_the_log_and_not_into_the_protocol(hostile: str, tmp_path: Path) -> None:
    log = tmp_path / "reward.log"
    outcomes = score_all(f"{hostile}:reward", [{"kind": "print"}, {"kind": "good"}], log_path=log)
    assert outcomes == [RewardOutcome(4.0)] * 2
    assert b"garbage" in log.read_bytes()


@pytest.mark.slow
def test_children_of_a_killed_reward_end_with_it(hostile: str, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    (outcome,) = score_all(f"{hostile}:reward", [{"kind": "child", "pid_file": str(pid_file)}], timeout_s=3)
    assert (outcome.failure or "").startswith("reward_timeout")
    pid = int(pid_file.read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


RUN = """
import asyncio, sys
from headrace.config.reward import RewardConfig
from headrace.rewards.reward_pool import RewardPool
from headrace.runtime.inline import SystemClock

async def play():
    pool = RewardPool(RewardConfig(function=sys.argv[1], timeout_s=60, workers=2, trusted=True), clock=SystemClock())
    await pool.start()
    rows = [{"kind": kind, "pid_file": sys.argv[2]} for kind in sys.argv[3:]]
    calls = [asyncio.create_task(pool.score("four", row, "")) for row in rows]
    await asyncio.sleep(0.2)
    print("busy", flush=True)
    await asyncio.gather(*calls)

asyncio.run(play())
"""


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


@pytest.mark.parametrize("kinds", [["sleep", "child"], ["backtrack", "good"]])
def test_a_run_killed_by_force_leaves_no_reward_behind(hostile: str, tmp_path: Path, kinds: list[str]) -> None:
    """Neither one that sleeps, nor what it started, nor one that never lets Python run, nor one that is idle."""
    pid_file = tmp_path / "pid"
    command = [sys.executable, "-c", RUN, f"{hostile}:reward", str(pid_file), *kinds]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "busy\n"
        if "child" in kinds:
            until(lambda: pid_file.exists() and bool(pid_file.read_text()), "the reward's own child did not start")
        left = [child.pid for child in psutil.Process(run.pid).children(recursive=True)]
        assert len(left) == 2 * 2 + ("child" in kinds), "two that score, with their guardians"
        run.send_signal(signal.SIGKILL)
    until(lambda: all(map(is_gone, left)), f"a process of {left} lives on")


def test_several_workers_score_at_the_same_time(hostile: str, tmp_path: Path) -> None:
    """Each waits until all three have begun."""
    (tmp_path / "begun").mkdir()
    row = {"kind": "meet", "folder": str(tmp_path / "begun")}
    assert score_all(f"{hostile}:reward", [row] * 3, workers=3, timeout_s=40) == [RewardOutcome(3.0)] * 3


def test_a_dead_worker_is_replaced(hostile: str) -> None:
    async def play() -> None:
        async with running(f"{hostile}:reward") as pool:
            first = (await pool.score("", {"kind": "pid"}, "")).value
            psutil.Process(int(first or 0)).kill()
            second = (await pool.score("", {"kind": "pid"}, "")).value
            assert second is None or second != first
            assert (await pool.score("four", {"kind": "good"}, "")).value == 4.0

    asyncio.run(play())


def test_trouble_in_ending_a_process_does_not_end_its_place(hostile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = RewardProcess.end

    async def play() -> None:
        async with running(f"{hostile}:reward") as pool:

            async def fails(process: RewardProcess, clock: Clock) -> str:
                await ends(process, clock)
                raise RecursionError("too deep")

            monkeypatch.setattr(RewardProcess, "end", fails)
            bad = await pool.score("four", {"kind": "exit"}, "")
            assert bad == RewardOutcome(None, "reward_died: the process could not be ended: too deep")
            assert await pool.score("four", {"kind": "good"}, "") == RewardOutcome(4.0)

    asyncio.run(play())


def test_a_folder_whose_guardian_was_killed_is_removed_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "left" / "within").mkdir(parents=True)

    async def play() -> None:
        clearing = Clearing(SystemClock())
        ours, held = socket.socketpair()
        ours.setblocking(False)
        with held:
            clearing.add(str(tmp_path / "left"), ours)
            await asyncio.sleep(0.05)
            assert (tmp_path / "left").exists(), "its guardian still has it"
        await clearing.close()

    asyncio.run(play())
    assert not (tmp_path / "left").exists()


def test_a_cancelled_call_leaves_the_others_alone(hostile: str) -> None:
    async def play() -> None:
        async with running(f"{hostile}:later") as pool:
            calls = [asyncio.create_task(pool.score("", {"s": 0.2}, "abc")) for _ in range(3)]
            await asyncio.sleep(0.05)
            calls[0].cancel()
            calls[1].cancel()
            assert await calls[2] == RewardOutcome(3.0)

    asyncio.run(play())


def test_rows_that_json_holds_but_few_formats_do(hostile: str) -> None:
    row = {"kind": "good", "big": 2**200, "half": "\ud800", "deep": [[[]]], "none": None}
    assert score_all(f"{hostile}:reward", [row]) == [RewardOutcome(4.0)]


def test_a_reward_whose_file_breaks_during_the_run_fails_its_calls(hostile: str) -> None:
    async def play() -> None:
        async with running(f"{hostile}:reward") as pool:
            Path(hostile).write_text("import absent_library")
            assert ((await pool.score("", {"kind": "exit"}, "")).failure or "").startswith("reward_died")
            failure = (await pool.score("", {"kind": "good"}, "")).failure or ""
            assert failure.startswith("reward_died: no process takes its place:")
            assert "absent_library" in failure

    asyncio.run(play())


def test_while_one_place_cannot_be_filled_the_others_go_on(
    hostile: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slot, "_RESTART_PAUSE_S", 0.05)

    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == slot.__name__]

    async def told_times(times: int) -> None:
        for _ in range(500):
            if len(told()) == times:
                return
            await asyncio.sleep(0.02)

    async def play() -> None:
        async with running(f"{hostile}:reward", workers=2) as pool:
            whole = Path(hostile).read_text()
            Path(hostile).write_text("import absent_library")
            rows: list[dict[str, Any]] = [{"kind": "exit"}, *({"kind": "good"} for _ in range(20))]
            bad, *good = await asyncio.gather(*(pool.score("four", row, "") for row in rows))
            assert (bad.failure or "").startswith("reward_died: the process ended")
            assert good == [RewardOutcome(4.0)] * 20
            await asyncio.sleep(0.3)
            assert await pool.score("four", {"kind": "good"}, "") == RewardOutcome(4.0)
            await told_times(1)
            await asyncio.sleep(0.3)
            (failed,) = told()
            assert "ended, and none takes its place: " in failed
            assert "absent_library" in failed
            Path(hostile).write_text(whole)
            await told_times(2)
            assert told()[1].endswith("takes the place of the one that ended before")

    asyncio.run(play())


@pytest.mark.slow
def test_every_call_of_a_mixed_crowd_gets_its_own_outcome(hostile: str) -> None:
    crowd = ["good", "raise", "exit", "good", "nan", "good", "forge", "good"] * 3 + ["sleep", "good"]
    rows = [{"kind": kind} for kind in crowd]
    outcomes = score_all(f"{hostile}:reward", rows, workers=3, timeout_s=3)
    expected = {
        "good": "4.0",
        "raise": "reward_raised",
        "exit": "reward_died",
        "nan": "reward_nan",
        "sleep": "reward_timeout",
        "forge": "reward_died",
    }
    seen = [str(o.value) if o.failure is None else failure_kind(o.failure) for o in outcomes]
    assert seen == [expected[kind] for kind in crowd]


def test_a_log_that_cannot_be_written_is_refused_at_the_start(hostile: str, tmp_path: Path) -> None:
    async def play() -> None:
        async with running(f"{hostile}:reward", log_path=tmp_path / "absent" / "reward.log"):
            pass

    with pytest.raises(ConfigError, match=r"cannot start a process to score rewards: .*No such file"):
        asyncio.run(play())


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("two", r"has the signature \(a\), but is called as \(response, row\)"),
        ("rewad", r"has no 'rewad'; did you mean reward\?"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_at_the_start(hostile: str, function: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        score_all(f"{hostile}:{function}", [])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import absent_library", "ModuleNotFoundError: No module named 'absent_library'"),
        ("import os; os._exit(9)", "but its process ended with exit status 9 while it loaded"),
    ],
)
def test_a_file_that_does_not_load_is_refused_at_the_start(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "broken.py").write_text(text)
    before = children()
    with pytest.raises(ConfigError, match=words):
        score_all(f"{tmp_path}/broken.py:f", [], workers=2)
    assert children() <= before


def test_an_unknown_reward_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"reward\.function is 'exacct'; write exact, numeric, regex, math"):
        score_all("exacct", [])


def test_built_in_rewards_run_in_the_child() -> None:
    rows = [{"answer": "four"}, {"answer": "five"}, {"other": 1}]
    right, wrong, faulty = score_all("exact", rows)
    assert (right.value, wrong.value) == (1.0, 0.0)
    assert (faulty.failure or "").startswith("reward_raised: KeyError")


def test_a_pattern_that_backtracks_for_ever_is_killed() -> None:
    async def play() -> RewardOutcome:
        async with running("regex", timeout_s=0.3) as pool:
            return await pool.score("a" * 64 + "b", {"answer": "^(a+)+$"}, "")

    assert asyncio.run(play()).failure == "reward_timeout: took longer than 0.3 s"


def test_closing_ends_what_runs(hostile: str) -> None:
    async def play() -> None:
        async with running(f"{hostile}:reward") as pool:
            calls = [asyncio.create_task(pool.score("", {"kind": "sleep"}, "")) for _ in range(40)]
            await asyncio.sleep(0.1)
            began = time.monotonic()
            await pool.close()
            assert time.monotonic() - began < 20
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results)
            with pytest.raises(RuntimeError, match="closed"):
                await pool.score("", {}, "")

    asyncio.run(play())


def test_the_child_imports_no_model_library() -> None:
    code = (
        "import sys, headrace.rewards.processes.worker; "
        "print(sorted({'torch', 'transformers', 'numpy', 'pydantic', 'asyncio'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
