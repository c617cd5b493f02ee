"""Programs that would rather have no reward than a bad one: whatever they do to themselves is a wrong answer."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from reward_pools_running import running
from sandbox_helpers import score

from headrace.config import TrainConfig
from headrace.config.reward import RewardConfig
from headrace.experience.failures import failure_kind
from headrace.rewards.code import CodeReward
from headrace.rewards.outcome import FailedReward, RewardOutcome
from headrace.sandbox.child_watch import Ending, Over
from headrace.sandbox.execute import Ran

SIX = [{"output": "6"}]
GOOD = "print(6)"
SPIN = "while True: pass"
HOSTILE = {
    "raises MemoryError": "raise MemoryError",
    "raises an error without words": """
class Mute(Exception):
    def __str__(self): raise SystemExit(0)
raise Mute
""",
    "exits with 255": "import os; os._exit(255)",
    "exits with 125": "import os; os._exit(125)",
    "exits with an object": "raise SystemExit(object())",
    "kills itself": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "kills its group": "import os, signal; os.killpg(0, signal.SIGKILL)",
    "ends by a signal without a name": "import os; os.kill(os.getpid(), 40)",
    "segfaults": "import ctypes; ctypes.string_at(0)",
    "aborts, and leaves a daemon": """
import os, time
if os.fork() == 0:
    os.setsid(); time.sleep(60)
os.abort()
""",
    "stops itself": "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    "kills its parents": """
import os, signal, time
for pid in (1, os.getppid()):
    try: os.kill(pid, signal.SIGKILL)
    except OSError: pass
time.sleep(60)
""",
    "stops its guardian, and everybody else": """
import os, signal, time
for pid in range(1, 1 << 15):
    try:
        if pid != os.getpid(): os.kill(pid, signal.SIGSTOP)
    except OSError: pass
time.sleep(60)
""",
    "prints too much": "while True: print('x' * 1000)",
    "prints too many errors": "import sys\nwhile True: sys.stderr.write('x' * 1000)",
    "prints what is no text": "import os; os.write(1, bytes(range(256)))",
    "sleeps": "import time; time.sleep(60)",
    "sleeps in small pieces": "import time\nwhile True: time.sleep(0.0001)",
    "computes without end": SPIN,
    "computes without end in C": "import re; re.match(r'(a+)+$', 'a' * 64 + 'b')",
    "computes on many threads": """
import threading
def spin():
    while True: pass
for _ in range(10): threading.Thread(target=spin).start()
""",
    "gives its turn away": "import os\nwhile True: os.sched_yield()",
    "is as nice as can be": f"""
import os
try: os.nice(19)
except OSError: pass
try: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
except OSError: pass
{SPIN}
""",
    "hides its time in children": """
import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    try:
        if os.fork() == 0:
            for i in range(20_000): pass
            os._exit(0)
    except OSError: pass
""",
    "forks as often as it may": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "forks once too often": "import os\nwhile True: os.fork()",
    "starts threads without end": """
import threading, time
while True: threading.Thread(target=time.sleep, args=(9,)).start()
""",
    "opens files without end": "import os\nwhile True: os.dup(0)",
    "writes a large file": "with open('f', 'wb') as f:\n    while True: f.write(bytes(1 << 20))",
    "asks for too much memory": "x = bytearray(1 << 40)",
    "recurses": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()",
    "becomes another program": "import os; os.execv('/bin/sleep', ['sleep', '60'])",
    "is no program": "\0",
    "takes back that it was started": """
import os
for fd in range(3, 64):
    for flags in (os.O_RDONLY | os.O_NONBLOCK, os.O_RDWR | os.O_NONBLOCK):
        try: os.read(os.open(f"/proc/self/fd/{fd}", flags), 1 << 16)
        except OSError: pass
    try: os.set_blocking(fd, False); os.read(fd, 1 << 16)
    except OSError: pass
os._exit(0)
""",
    "closes everything": "import os; os.closerange(0, 256); os._exit(0)",
    "reports nonsense": r"""
import os
for fd in range(3, 64):
    try: os.write(fd, b'\xff\xfe{"' + b'[' * 50_000 + b'\n["started"]\n[1e999]\n"' + b'9' * 5000 + b'\n')
    except OSError: pass
os._exit(0)
""",
}
ENDS = [
    "raises MemoryError",
    "raises an error without words",
    "exits with 255",
    "exits with 125",
    "exits with an object",
    "kills itself",
    "kills its group",
    "ends by a signal without a name",
    "segfaults",
    "aborts, and leaves a daemon",
    "becomes another program",
    "is no program",
    "takes back that it was started",
    "closes everything",
    "reports nonsense",
    "prints what is no text",
]
NEVER_ENDS = [
    "stops itself",
    "kills its parents",
    "stops its guardian, and everybody else",
    "sleeps",
    "sleeps in small pieces",
    "computes without end",
    "computes without end in C",
    "computes on many threads",
    "gives its turn away",
    "is as nice as can be",
    "hides its time in children",
    "prints too many errors",
]
LIMITS = [how for how in HOSTILE if how not in (*ENDS, *NEVER_ENDS)]


@pytest.fixture
def own_tool(tool: str) -> str:
    if tool == "none" and os.geteuid() != 0:
        pytest.skip("without walls a user's program may kill the process that judges it")
    return tool


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("kind", [ENDS, NEVER_ENDS, LIMITS], ids=["ends", "never ends", "limits"])
def test_what_a_program_does_to_itself_is_a_wrong_answer(own_tool: str, kind: list[str]) -> None:
    """And costs the program after it nothing."""
    programs = [program for how in kind for program in (HOSTILE[how], GOOD)]
    outcomes = score(*programs, tests=SIX, tool=own_tool, timeout_s=0.3)
    assert dict(zip(kind, outcomes[::2], strict=True)) == dict.fromkeys(kind, RewardOutcome(0.0))
    assert outcomes[1::2] == [RewardOutcome(1.0)] * len(kind)


@pytest.mark.slow
@pytest.mark.soak
def test_the_patience_of_a_quiet_machine_suffices_to_tell_whose_fault_it_is(own_tool: str) -> None:
    """None is left out as if the host had been too slow."""
    outcomes = score(*(HOSTILE[how] for how in NEVER_ENDS), tests=SIX, tool=own_tool, timeout_s=1.0)
    assert dict(zip(NEVER_ENDS, outcomes, strict=True)) == dict.fromkeys(NEVER_ENDS, RewardOutcome(0.0))


CALLS = {
    "returns what is nested": "def f():\n    x = []\n    for _ in range(10**5): x = [x]\n    return x",
    "returns what JSON does not have": "def f(): return {1, 2}",
    "returns a huge number": "def f(): return 10 ** 100_000",
    "returns too much": "def f(): return 'x' * 10**7",
    "returns a lie": "class L(int):\n    def __eq__(self, other): return True\ndef f(): return L(5)",
    "is not there": "g = 6",
    "raises": "def f(): raise MemoryError",
}


@pytest.mark.usefixtures("patient")
def test_a_function_that_spoils_its_answer_is_wrong() -> None:
    *outcomes, good = score(*CALLS.values(), "def f(): return 6", tests=[{"call": "f", "returns": 6}], timeout_s=2)
    assert dict(zip(CALLS, outcomes, strict=True)) == dict.fromkeys(CALLS, RewardOutcome(0.0))
    assert good == RewardOutcome(1.0)


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_tests_that_time_did_not_suffice_for_are_not_passed() -> None:
    slow = "import time; time.sleep(1.5); print(6)"
    assert score(slow, tests=SIX * 3, timeout_s=2.5, code_score="share") == [RewardOutcome(1 / 3)]


@pytest.fixture
def one_busy_processor() -> Iterator[None]:
    """All that is started here shares one processor with three others."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    others = [subprocess.Popen([sys.executable, "-c", SPIN], start_new_session=True) for _ in range(3)]
    yield
    for other in others:
        other.kill()
        other.wait()
    os.sched_setaffinity(0, before)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="waiting for a processor is told on Linux alone")
@pytest.mark.usefixtures("one_busy_processor")
def test_time_that_others_had_is_not_the_program_s(patient: None) -> None:
    """It needs 0.7 s of a processor of which it has a quarter, on a thread beside the main one, as many do."""
    program = """
import threading, time
def work():
    while time.thread_time() < 0.7: pass
thread = threading.Thread(target=work)
thread.start(); thread.join()
print(6)
"""
    assert score(program, tests=SIX, timeout_s=1.5) == [RewardOutcome(1.0)]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="waiting for a processor is told on Linux alone")
@pytest.mark.usefixtures("one_busy_processor")
def test_a_host_that_is_too_slow_fails_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.rewards.reward_pool.CODE_PATIENCE", 1)
    (outcome,) = score(SPIN, tests=SIX, timeout_s=0.6)
    assert outcome.value is None
    assert (outcome.failure or "").startswith("reward_timeout: the host was too slow: in 0.6 s the program had 0.")
    assert (outcome.failure or "").endswith("s of its 0.6 s, in the last of 2 tries")


class PaperExecutor:
    """Says what is written down, one run after another."""

    def __init__(self, *runs: Ran) -> None:
        self._runs = list(runs)
        self.allowed: list[float] = []

    def run(self, code: str, *, allowed_s: float, **others: Any) -> Ran:
        self.allowed.append(allowed_s)
        return self._runs.pop(0)


def ran(over: Over | None = None, code: int | None = 0, output: bytes = b"6", spent_s: float = 1.0) -> Ran:
    return Ran(Ending(None if over else code, over), output, "", [["started"]], spent_s)


def judge(*runs: Ran, tests: int = 1) -> tuple[float, list[float]]:
    executor = PaperExecutor(*runs)
    reward = CodeReward(executor, 10.0, 0.0, "share", patience=6, tries=2)  # type: ignore[arg-type]
    return reward("", SIX * tests), executor.allowed


def test_a_test_on_a_slow_host_is_tried_once_more_with_the_time_that_it_had() -> None:
    assert judge(ran(spent_s=4.0), ran(Over.WAIT), ran(spent_s=6.0), tests=3) == (2 / 3, [10.0, 6.0, 6.0])
    with pytest.raises(
        FailedReward, match=r"the host was too slow: in 60 s the program had 2\.5 s of its 10 s"
    ) as failed:
        judge(ran(Over.WAIT), ran(Over.WAIT, spent_s=2.5))
    assert failed.value.kind == "reward_timeout"
    with pytest.raises(FailedReward, match=r"each of its 2 tests starts a sandbox: raise reward\.timeout_s"):
        judge(ran(Over.WAIT), ran(), ran(Over.WAIT), tests=2)


@pytest.mark.parametrize("over", [Over.OUTPUT, Over.MEMORY, Over.TIME])
def test_every_limit_of_its_own_is_a_wrong_answer(over: Over) -> None:
    assert judge(ran(over)) == (0.0, [10.0])


def test_what_a_program_reads_is_no_place_to_write(tool: str) -> None:
    """It is the host's, and would be room beside its own."""
    tries = """
import os
for how in (os.O_WRONLY, os.O_RDWR):
    try:
        descriptor = os.open("/proc/self/fd/0", how); os.lseek(descriptor, 0, 2); os.write(descriptor, b"x" * 4096)
        print("written")
    except OSError: pass
try: os.write(0, b"x"); print("written")
except OSError: pass
print(input())
"""
    (outcome,) = score(tries, tests=[{"input": "6\n", "output": "6"}], tool=tool)
    assert outcome == RewardOutcome(1.0)


def test_output_beyond_what_it_may_write_is_wrong_also_if_it_ends_well() -> None:
    assert judge(Ran(Ending(0, Over.OUTPUT), b"6", "", [["started"]], 0.1))[0] == 0.0


def test_a_sandbox_that_does_not_start_fails_the_sample() -> None:
    with pytest.raises(FailedReward, match="the sandbox ended with exit status 125: no room") as failed:
        judge(Ran(Ending(125), b"", "no room", [], 0.0))
    assert failed.value.kind == "reward_died"


def test_the_user_s_own_function_that_meets_a_limit_fails_its_sample(tmp_path: Any) -> None:
    """Also where it judges programs itself: nobody else can tell whose doing it is."""
    (tmp_path / "own.py").write_text("def f(response, row): exec(response)")

    async def play() -> list[RewardOutcome]:
        async with running(f"{tmp_path}/own.py:f", "none", timeout_s=1.0) as pool:
            return [
                await pool.score(HOSTILE[how], {}, "") for how in ("raises MemoryError", "exits with 255", "sleeps")
            ]

    outcomes = asyncio.run(play())
    assert [outcome.value for outcome in outcomes] == [None] * 3
    kinds = [failure_kind(outcome.failure or "") for outcome in outcomes]
    assert kinds == ["reward_raised", "reward_died", "reward_timeout"]


def test_a_stall_is_not_told_while_a_slow_host_is_waited_for() -> None:
    assert RewardConfig(function="code", timeout_s=10).longest[0] == 120
    assert RewardConfig(function="exact", timeout_s=10).longest[0] == 10
    base: dict[str, Any] = {"model": {"path": "m"}, "data": {"train": "t"}}
    TrainConfig.model_validate({**base, "reward": {"function": "code", "timeout_s": 75}})
    with pytest.raises(ValueError, match=r"reward.timeout_s \(x12 for code, on a slow host\) lets .* take 912 s"):
        TrainConfig.model_validate({**base, "reward": {"function": "code", "timeout_s": 76}})
