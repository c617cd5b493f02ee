"""The user's rewards in the sandbox: real processes that do their worst to each other, the machine and the run."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from reward_pools_running import running

from headrace import sandbox
from headrace.config import ConfigError
from headrace.config.reward import SandboxConfig
from headrace.experience.failures import failure_kind
from headrace.rewards.outcome import RewardOutcome
from headrace.rewards.tools import find_walls
from headrace.runtime.inline import SystemClock
from headrace.sandbox.walls import Walls

HOSTILE = '''
import json, os, signal, socket, subprocess, sys, threading, time

seen = []

def reward(response, row):
    """Does what the row says."""
    kind = row["kind"]
    if kind == "loop":
        while True: pass
    if kind == "hang in C":
        import re
        re.match(r"(a+)+$", "a" * 64 + "b")
    if kind == "fork bomb":
        while True:
            try: os.fork()
            except OSError: pass
    if kind == "escape":
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(60)
        os._exit(5)
    if kind == "memory":
        return len(bytearray(1 << 40))
    if kind == "files":
        for i in range(10**6):
            with open(f"f{i}", "wb") as file: file.write(bytes(1 << 20))
    if kind == "large file":
        with open("f", "wb") as file:
            while True: file.write(bytes(1 << 20))
    if kind == "stdout":
        while True: os.write(1, b"x" * 65536)
    if kind == "parent":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    if kind == "everybody":
        for pid in range(2, 100):
            try: os.kill(pid, signal.SIGKILL)
            except OSError: pass
        time.sleep(60)
    if kind == "descriptors":
        for fd in range(3, 64):
            try: os.write(fd, b"\\xff" * 4096)
            except OSError: pass
        os._exit(0)
    if kind == "daemon":
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.closerange(0, 256)
                time.sleep(60)
            os._exit(0)
        time.sleep(60)
    if kind == "nested":
        for i in range(3000):
            os.mkdir("d")
            os.chdir("d")
    if kind == "many files":
        for i in range(10**9): open(f"f{i}", "w").close()
    if kind == "kill all":
        for i in range(50):
            try: os.kill(-1, signal.SIGKILL)
            except OSError: pass
            time.sleep(0.01)
    if kind in ("sleep", "thread"):
        time.sleep(0.6)
    if kind == "thread":
        thread = threading.Thread(target=time.sleep, args=(0.05,))
        thread.start()
        thread.join()
    if kind == "threads":
        for i in range(10**6): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    if kind == "made up":
        for fd in range(3, 64):
            try: os.write(fd, json.dumps([None, "surprise: " + "x" * 9999]).encode())
            except OSError: pass
        os._exit(0)
    if kind == "exit":
        os._exit(3)
    if kind == "nan":
        return float("nan")
    if kind == "patch":
        import headrace.rewards.outcome as outcome, headrace.rewards.processes.prepared as scorer
        outcome.as_reward = scorer.as_reward = scorer.verdict = json.dumps = lambda *a, **k: 1.0
        globals()["reward"] = lambda response, row: 1.0
        seen.append("patched")
        return 0.25
    if kind == "memory of others":
        seen.append(1)
        return len(seen)
    if kind == "environment":
        texts = [" ".join(os.environ)]
        for name in os.listdir("/proc"):
            if name.isdigit():
                try: texts.append(open(f"/proc/{name}/environ", errors="replace").read())
                except OSError: pass
        return float(any(row["secret"] in text for text in texts))
    if kind == "folder":
        before = os.listdir(".")
        open("left", "w").write("x")
        return len(before)
    if kind == "write outside":
        open(row["path"], "w").write("x")
    if kind == "network":
        socket.create_connection(("127.0.0.1", row["port"]), 2)
    return float(len(response))
'''


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    (tmp_path / "hostile.py").write_text(HOSTILE)
    return f"{tmp_path}/hostile.py:reward"


def score_all(function: str, tool: str, rows: list[dict[str, Any]], **changes: Any) -> list[RewardOutcome]:
    async def play() -> list[RewardOutcome]:
        async with running(function, tool, **changes) as pool:
            return [await pool.score("four", row, "prompt") for row in rows]

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("kind", "failures"),
    [
        ("loop", {"reward_timeout"}),
        pytest.param("hang in C", {"reward_timeout"}, marks=pytest.mark.slow),
        pytest.param("fork bomb", {"reward_timeout"}, marks=pytest.mark.slow),
        pytest.param("stdout", {"reward_timeout"}, marks=pytest.mark.slow),
        ("memory", {"reward_raised"}),
        ("large file", {"reward_raised"}),
        ("threads", {"reward_raised"}),
        ("escape", {"reward_died"}),
        ("exit", {"reward_died"}),
        ("descriptors", {"reward_died"}),
        ("nan", {"reward_nan"}),
        ("parent", {"reward_died", "reward_timeout", "reward_raised"}),
    ],
)
def test_a_hostile_reward_fails_alone_and_its_place_is_free(
    hostile: str, tool: str, kind: str, failures: set[str]
) -> None:
    async def play() -> None:
        async with running(hostile, tool, timeout_s=3.0) as pool:
            assert await pool.score("four", {"kind": "good"}, "") == RewardOutcome(4.0)
            began = time.monotonic()
            bad, good = await asyncio.gather(
                pool.score("four", {"kind": kind}, ""), pool.score("four", {"kind": "good"}, "")
            )
            assert time.monotonic() - began < 3.0 + 20
            assert bad.value is None
            assert failure_kind(bad.failure or "") in failures
            assert good == RewardOutcome(4.0)

    asyncio.run(play())


def test_a_flood_of_files_meets_the_limit(hostile: str, tool: str) -> None:
    if tool == "none":
        pytest.skip("a folder on the disk has no size")
    bad, good = score_all(hostile, tool, [{"kind": "files"}, {"kind": "folder"}])
    assert (bad.failure or "").startswith(
        "reward_raised: [in the sandbox; see reward.sandbox and reward.trusted] OSError"
    )
    assert "[Errno 28] No space left" in (bad.failure or "")
    assert good == RewardOutcome(0.0), "the next one has an empty folder, and room"


@pytest.mark.slow
def test_nobody_else_can_be_killed(hostile: str, tool: str) -> None:
    if tool == "none" and os.geteuid() != 0:
        pytest.skip("without walls a user's process may kill the user's others")
    bad, good = score_all(hostile, tool, [{"kind": "everybody"}, {"kind": "good"}], timeout_s=3)
    assert bad.value is None
    assert good == RewardOutcome(4.0)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has users for them")
@pytest.mark.parametrize(("attack", "victim"), [("fork bomb", "thread"), ("kill all", "sleep")])
def test_samples_of_other_places_are_neither_killed_nor_held_up(
    hostile: str, tool: str, attack: str, victim: str
) -> None:
    async def play() -> None:
        async with running(hostile, tool, timeout_s=5, workers=2) as pool:
            good = asyncio.create_task(pool.score("four", {"kind": victim}, ""))
            await asyncio.sleep(0.1)
            bad = asyncio.create_task(pool.score("four", {"kind": attack}, ""))
            assert await good == RewardOutcome(4.0)
            await bad

    asyncio.run(play())


@pytest.mark.parametrize("kind", ["daemon", "hang in C"])
def test_closing_ends_what_a_call_in_flight_started(hostile: str, tool: str, kind: str) -> None:
    async def play() -> None:
        async with running(hostile, tool) as pool:
            call = asyncio.create_task(pool.score("four", {"kind": kind}, ""))
            left = await started_by(psutil.Process(), 3 + (kind == "daemon"))
            await pool.close()
            assert not [process for process in left if not is_gone(process)]
            with pytest.raises(asyncio.CancelledError):
                await call

    asyncio.run(play())


async def started_by(run: psutil.Process, count: int) -> list[psutil.Process]:
    """The processes below `run`, once there are `count` at least: a guardian, a scoring one, its fork, a daemon."""
    deadline = time.monotonic() + 10
    while len(found := [one for one in run.children(recursive=True) if not is_gone(one)]) < count:
        assert time.monotonic() < deadline, "the call did not begin"
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)
    return found


def is_gone(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_deeply_nested_folders_cost_nobody_anything(hostile: str, tool: str, temporary: Path) -> None:
    kinds = ["nested", "good", "nested", "folder"]
    assert [one.value for one in score_all(hostile, tool, [{"kind": kind} for kind in kinds])] == [4.0, 4.0, 4.0, 0.0]
    assert not list(temporary.glob("headrace-*"))


@pytest.mark.slow
def test_a_flood_of_small_files_costs_no_time_but_its_own(hostile: str, temporary: Path) -> None:
    async def play() -> None:
        async with running(hostile, "none", timeout_s=3.0) as pool:
            began = time.monotonic()
            bad = await pool.score("four", {"kind": "many files"}, "")
            assert time.monotonic() - began < 3.0 + 20
            assert bad.value is None
            assert await pool.score("four", {"kind": "folder"}, "") == RewardOutcome(0.0)

    asyncio.run(play())
    assert not list(temporary.glob("headrace-*")), "closing waits until they are gone"


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the run makes its folders."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def test_samples_share_nothing(hostile: str, tool: str) -> None:
    kinds = ["patch", "good", "memory of others", "memory of others", "folder", "folder"]
    outcomes = score_all(hostile, tool, [{"kind": kind} for kind in kinds])
    assert (outcomes[0].value or 0.0) in (0.0, 1.0), "it spoils its own verdict at most"
    assert [outcome.value for outcome in outcomes[1:]] == [4.0, 1.0, 1.0, 0.0, 0.0]


def test_no_environment_is_there_but_what_is_named(hostile: str, tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TEST_SECRET", "swordfish")
    row = {"kind": "environment", "secret": "HEADRACE_TEST_SECRET"}
    assert score_all(hostile, tool, [row]) == [RewardOutcome(0.0)]
    assert score_all(hostile, tool, [row], environment=("HEADRACE_TEST_SECRET",)) == [RewardOutcome(1.0)]


def test_files_outside_are_not_written(hostile: str, tool: str, tmp_path: Path) -> None:
    if tool == "none":
        pytest.skip("needs walls")
    (outcome,) = score_all(hostile, tool, [{"kind": "write outside", "path": str(tmp_path / "x")}])
    assert (outcome.failure or "").startswith("reward_raised")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("network", [False, True])
def test_the_network_is_there_only_on_demand(hostile: str, tool: str, network: bool) -> None:
    if tool == "none":
        pytest.skip("needs walls")

    async def play() -> RewardOutcome:
        server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
        async with server, running(hostile, tool, network=network) as pool:
            port = server.sockets[0].getsockname()[1]
            return await pool.score("four", {"kind": "network", "port": port}, "")

    outcome = asyncio.run(play())
    assert outcome == RewardOutcome(4.0) if network else (outcome.failure or "").startswith("reward_raised")


def test_a_failure_that_is_made_up_is_kept_within_bounds(hostile: str) -> None:
    (outcome,) = score_all(hostile, "none", [{"kind": "made up"}])
    assert outcome == RewardOutcome(None, "reward_died: the process broke the protocol: that is no verdict")


RUN = """
import asyncio, sys
from headrace.config.reward import RewardConfig, SandboxConfig
from headrace.rewards.reward_pool import RewardPool
from headrace.runtime.inline import SystemClock

async def play():
    sandbox = SandboxConfig(tool=sys.argv[2], memory_mib=512)
    pool = RewardPool(RewardConfig(function=sys.argv[1], timeout_s=60, sandbox=sandbox), clock=SystemClock())
    await pool.start()
    call = asyncio.create_task(pool.score("four", {"kind": sys.argv[3]}, ""))
    await asyncio.sleep(0.3)
    print("busy", flush=True)
    await call

asyncio.run(play())
"""


@pytest.mark.parametrize("kind", ["daemon", "hang in C"])
def test_a_run_killed_by_force_leaves_neither_a_process_nor_a_folder_behind(
    hostile: str, tool: str, temporary: Path, kind: str
) -> None:
    with subprocess.Popen([sys.executable, "-c", RUN, hostile, tool, kind], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "busy\n"
        left = asyncio.run(started_by(psutil.Process(run.pid), 3 + (kind == "daemon")))
        run.kill()
    deadline = time.monotonic() + 5
    while any(not is_gone(process) for process in left) or list(temporary.glob("headrace-*")):
        assert time.monotonic() < deadline, f"{left}, {list(temporary.iterdir())}"
        time.sleep(0.02)


@pytest.mark.parametrize(("name", "program"), [("bubblewrap", "bwrap"), ("nsjail", "nsjail")])
def test_a_tool_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, name: Any, program: str) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    says = rf"reward\.sandbox\.tool is {name}, which does not work here: no program {program}; mend that"
    with pytest.raises(ConfigError, match=says):
        asyncio.run(find_walls(SandboxConfig(tool=name), SystemClock(), own_function=True))


def test_a_limit_that_loading_exceeds_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text("import mmap; kept = mmap.mmap(-1, 200 << 20)\ndef f(response, row): return 1")
    with pytest.raises(ConfigError, match=r"reward\.sandbox\.memory_mib is 64, but once the reward is loaded"):
        score_all(f"{tmp_path}/large.py:f", "none", [], memory_mib=64)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder of programs that do nothing, and the only one where programs are looked for."""
    for name in ("bwrap", "nsjail"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_bubblewrap_s_command_line(stub: Path) -> None:
    line = Walls("bubblewrap", 1024, network=False, reads=("/usr",)).around(["/bin/true"], "/work-folder")
    words = " ".join(line)
    assert line[0] == str(stub / "bwrap")
    assert "--unshare-net" in line
    assert "--ro-bind /usr /usr" in words
    assert "--ro-bind / /" not in words
    assert "--size 1024 --tmpfs /work-folder --remount-ro / --chdir /work-folder -- /bin/true" in words


def test_an_agent_has_no_process_of_bubblewrap_s_beside_it(stub: Path) -> None:
    """It would be the agent's user's, and without a filter."""
    walls = Walls("bubblewrap", 1024, network=False, reads=("/usr",))
    assert "--as-pid-1" in walls.around(["/bin/true"], "/work-folder", loopback=True)
    assert "--as-pid-1" not in walls.around(["/bin/true"], "/work-folder"), "a program waits for no orphans"


@pytest.mark.parametrize("user", [0, 1000])
@pytest.mark.parametrize("network", [False, True])
def test_nsjail_s_command_line(stub: Path, monkeypatch: pytest.MonkeyPatch, user: int, network: bool) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    walls = Walls("nsjail", 1024, network=network, reads=("/usr",))
    line = walls.around(["/bin/true", "--", "x"], "/work-folder", passes=(5, 7))
    outer, inner = line[: line.index("--")], line[line.index("--") + 1 :]
    assert outer[3].endswith("tied.py"), "nsjail does not end with the process that started it"
    assert outer[4] == str(stub / "nsjail")
    assert ("--disable_clone_newnet" in outer) == network
    assert ("--disable_clone_newuser" in outer) == (user == 0)
    assert not {"--disable_clone_newpid", "--disable_clone_newipc", "--disable_no_new_privs", "--keep_caps"} & {*outer}
    options = list(itertools.pairwise(outer))
    assert [value for name, value in options if name == "--pass_fd"] == ["5", "7"]
    assert ("--time_limit", "0") in options, "a process that scores lives as long as the run"
    kept = {value for name, value in options if name == "--cap"}
    nobodys = {"CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH"}
    assert kept == {"CAP_SYS_ADMIN"} | (nobodys if user == 0 else set())
    assert inner[3].endswith("enter.py")
    spec = json.loads(inner[4])
    assert (spec["folder"], spec["disk_bytes"], spec["reads"]) == ("/work-folder", 1024, ["/usr"])
    assert spec["is_first"], "what is left to do: the mounts, and to drop the right to mount"
    assert inner[5:] == ["/bin/true", "--", "x"]


@pytest.mark.slow
def test_what_is_tied_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    tied = Path(sandbox.__file__).with_name("tied.py")
    code = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); input()"
    command = [sys.executable, "-c", code, sys.executable, "-I", "-S", str(tied), "/bin/sleep", "60"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        deadline = time.monotonic() + 10
        while child.name() != "sleep" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert child.name() == "sleep"
        parent.kill()
    _, alive = psutil.wait_procs([child], timeout=5)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


HEAVY = '''
loaded = bytearray(b"x") * (16 << 20)

def reward(response, row):
    """Kibibytes of this process's memory that are in huge pages."""
    with open("/proc/self/smaps") as told:
        return float(sum(int(line.split()[1]) for line in told if line.startswith("AnonHugePages:")))
'''


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
def test_what_a_function_has_loaded_is_in_huge_pages_before_it_is_forked(tmp_path: Path, tool: str) -> None:
    """A fork copies an entry for each page. Where this kernel makes huge pages at all."""
    file = tmp_path / "heavy.py"
    file.write_text(HEAVY)
    here = "import heavy; from headrace.sandbox.huge_pages import collapse; collapse(); print(heavy.reward('', {}))"
    asked = subprocess.run([sys.executable, "-c", here], cwd=tmp_path, capture_output=True, text=True, check=True)
    if float(asked.stdout) < 8 << 10:
        pytest.skip("this kernel puts nothing into huge pages")

    async def play() -> RewardOutcome:
        async with running(f"{file}:reward", tool) as pool:
            return await pool.score("", {}, "")

    outcome = asyncio.run(play())
    assert outcome.value is not None, outcome.failure
    assert outcome.value >= 8 << 10
