"""Agents that are programs: a process of their own, which within walls reaches the API of its episode alone."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from agent_programs import ASKS, inline, play, play_at_once, walled
from rollout_helpers import ScriptedEngine, says

from headrace.config.agent import AgentCommand
from headrace.config.errors import ConfigError
from headrace.engines.protocol import GenerateRequest, TokenChunk
from headrace.gateway.agents.own_folder import OwnFolder
from headrace.rollout.agent_command import AgentFailed, CommandAgent


def program(folder: Path, *parts: str) -> Path:
    file = folder / "program.py"
    file.write_text("\n".join(textwrap.dedent(part) for part in (ASKS, *parts)))
    return file


limited = pytest.mark.skipif(sys.platform != "linux", reason="the limits are Linux's")
roots = pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="root alone becomes another user")


@pytest.mark.parametrize("sandbox", [pytest.param("auto", marks=walled), "none"])
def test_a_program_plays_and_prints_its_reward(tmp_path: Path, sandbox: Any) -> None:
    file = program(tmp_path, "print('thinking')\nprint(float(ask('x') == told['row']['answer']))")
    agent = AgentCommand(command=(sys.executable, str(file)), reward="stdout", sandbox=sandbox, read=(str(tmp_path),))
    (only,), engine = play(agent)
    assert only.reward == 1.0
    assert len(engine.requests) == 1


@pytest.mark.parametrize("sandbox", [pytest.param("auto", marks=walled), "none"])
def test_a_proxy_that_it_is_given_is_not_asked_for_the_api(sandbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nobody answers
    code = "print(float(ask('x') == 'one'))"
    (only,), _ = play(inline(code, reward="stdout", sandbox=sandbox, environment=("http_proxy",)))
    assert only.reward == 1.0


@walled
def test_nothing_but_the_episodes_api_answers(tmp_path: Path) -> None:
    """TCP of the machine, its Unix sockets, also where it sees the files, a run's control among them, hidden files,
    other processes, and what it could write."""
    secret = Path("/tmp") / f"headrace-test-secret-{os.getpid()}"
    secret.write_text("x")
    server = socket.create_server(("127.0.0.1", 0))
    named = socket.socket(socket.AF_UNIX)
    named.bind(str(tmp_path / "hidden.sock"))
    named.listen()
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0headrace-test-{os.getpid()}")
    abstract.listen()
    seen = Path(os.path.relpath(tempfile.mkdtemp(prefix="seen-", dir=".")))
    seen.chmod(0o755)
    shown = [
        socket.socket(socket.AF_UNIX, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_STREAM)
    ]
    for each, (name, mode) in zip(shown, (("open", 0o666), ("datagrams", 0o666), ("control", 0o600)), strict=True):
        each.bind(str(seen / f"{name}.sock"))
        (seen / f"{name}.sock").chmod(mode)
    shown[0].listen()
    shown[2].listen()
    port = server.getsockname()[1]
    script = Path.cwd() / "tests" / "gateway" / "test_agent_command.py"  # in the working folder, which it sees
    code = f"""
        import glob, socket
        def refused(call):
            try:
                call()
            except OSError:
                return True
            return False
        def tcp(host, port):
            return lambda: socket.create_connection((host, port), 3)
        def unix(path):
            def connect():
                socket.socket(socket.AF_UNIX).connect(path)
            return connect
        def datagram(path):
            return lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b"x", path)
        tries = {{
            "loopback of the machine": refused(tcp("127.0.0.1", {port})),
            "another machine": refused(tcp("192.0.2.1", 80)),
            "a hidden socket": refused(unix({str(tmp_path / "hidden.sock")!r})),
            "an abstract socket": refused(unix("\\0headrace-test-{os.getpid()}")),
            "a socket that it sees": refused(unix({str(seen / "open.sock")!r})),
            "one for datagrams": refused(datagram({str(seen / "datagrams.sock")!r})),
            "a run's control": refused(unix({str(seen / "control.sock")!r})),
            "a hidden file": refused(lambda: open({str(secret)!r})),
            "the working folder": refused(lambda: open({str(script)!r}, "a")),
            "other processes": {os.getpid()} not in map(int, filter(str.isdigit, os.listdir("/proc"))) or
                b"pytest" not in open("/proc/{os.getpid()}/cmdline", "rb").read(),
            "the memory of other processes": all(refused(lambda: os.open(f"/proc/{{pid}}/mem", os.O_RDWR))
                for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()),
            "other sockets": len(glob.glob("/tmp/headrace-agents-*/*/*.sock")) == 1,
            "rights": refused(lambda: os.setuid(0)) if os.getuid() else False,
        }}
        open(os.path.join(os.environ["HOME"], "mine"), "w").write("it may write here")
        assert all(tries.values()), tries
        socket.socketpair()  # as asyncio does
        assert set(os.environ) <= {{"PATH", "LANG", "LC_ALL", "HOME", "TMPDIR", "OPENAI_API_KEY", "OPENAI_MODEL",
            "ANTHROPIC_MODEL", "OPENAI_BASE_URL", "OPENAI_API_BASE",
            "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "LC_CTYPE"}}, os.environ
        ask("x")
        print(0.5)
    """
    agent = AgentCommand(command=(sys.executable, "-c", textwrap.dedent(ASKS) + textwrap.dedent(code)), reward="stdout")
    try:
        (only,), _ = play(agent)
    finally:
        for each in (server, named, abstract, *shown):
            each.close()
        shutil.rmtree(seen)
        secret.unlink()
    assert only.reward == 0.5


def test_what_a_process_left_that_is_no_more_is_removed() -> None:
    """By its lock: that of one that lives stays."""
    code = "from headrace.gateway.agents.own_folder import OwnFolder as F; import os; print(F().of(3).parent)"
    left = Path(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip())
    assert (left / "3").is_dir()
    mine, other = OwnFolder(), OwnFolder()
    kept = mine.of(0)
    other.of(0)
    assert kept.is_dir()
    assert not left.exists()
    mine.close()
    other.close()
    assert not kept.parent.exists()


@walled
def test_a_program_plays_where_tmpdir_is_too_long_for_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("t" * 90)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    (only,), _ = play(inline("print(float(ask('x') == 'one'))", reward="stdout"))
    assert only.reward == 1.0


@pytest.mark.parametrize(("length", "taken"), [(51, True), (52, False)])
def test_the_folder_of_agents_is_a_temporary_one_unless_a_sockets_path_would_be_too_long(
    length: int, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: 51 and 56 are 107, all that a socket's path may have."""
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        parent = Path(short, "t" * (length - len(short) - 1))
        parent.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(parent))
        own = OwnFolder()
        found = own.of(0).parent.parent
        own.close()
    assert found == (parent if taken else Path("/tmp"))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise ValueError('no luck')", "ended with exit status 1: .*no luck"),
        ("ask('x'); os._exit(7)", "ended with exit status 7: it said nothing"),
        ("ask('x'); os.kill(os.getpid(), 9)", "ended with exit status 137"),
        ("ask('x'); print('well done')", "the last line that the agent printed is 'well done'"),
    ],
)
@walled
def test_what_goes_wrong_is_said(code: str, words: str) -> None:
    with pytest.raises(AgentFailed, match=words):
        play(inline(code, reward="stdout"))


@pytest.mark.parametrize("sandbox", [pytest.param("auto", marks=walled), pytest.param("none", marks=limited)])
@pytest.mark.parametrize("leaves", ["", "os.fork() and os._exit(0)"])
def test_memory_is_limited(sandbox: Any, leaves: str) -> None:
    """Of orphans, too."""
    takes = f"""
        import time
        if not os.fork():
            {leaves}
            for _ in range(3):
                if os.fork() == 0:
                    held = bytearray(40 << 20)
                    break
        time.sleep(30)
    """
    with pytest.raises(AgentFailed, match=r"exit status 124: it took more than 96 MiB of memory \(rollout\.agent\.mem"):
        play(inline(takes, memory_mib=96, sandbox=sandbox))


@pytest.mark.parametrize("sandbox", [pytest.param("auto", marks=walled), pytest.param("none", marks=roots)])
def test_processes_are_limited(sandbox: Any) -> None:
    forks = """
        import time
        ask("x")
        count = 0
        try:
            while count < 1000:
                if os.fork() == 0:
                    time.sleep(30)
                    os._exit(0)
                count += 1
        except BlockingIOError:
            pass
        print(float(count))
    """
    (only,), _ = play(inline(forks, processes=20, reward="stdout", sandbox=sandbox))
    assert only.reward is not None
    assert 10 <= only.reward <= 20


@roots
def test_without_walls_each_episode_of_roots_has_a_user_and_a_folder_of_its_own() -> None:
    code = """
        ask("x")
        mine = os.path.join(os.environ["HOME"], "mine")
        open(mine, "w").write("it may write here")
        others = [each.path for each in os.scandir(os.path.dirname(os.environ["HOME"]))]
        assert others == [os.environ["HOME"]], others
        assert oct(os.stat(os.environ["HOME"]).st_mode & 0o777) == "0o700"
        assert open(sys.executable, "rb").read(1)
        print(float(os.getuid()))
    """
    episodes = play_at_once(inline(code, reward="stdout", sandbox="none"), 2, AnswersTogether(2))
    users = {only.reward for (only,) in episodes}
    assert len(users) == 2
    assert 0.0 not in users


class AnswersTogether(ScriptedEngine):
    """Once so many have asked."""

    def __init__(self, count: int) -> None:
        super().__init__(says("one"))
        self._missing, self._all = count, asyncio.Event()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[TokenChunk]:
        self._missing -= 1
        if self._missing == 0:
            self._all.set()
        await self._all.wait()
        async for chunk in super().generate(request):
            yield chunk


@walled
def test_the_processes_of_an_episode_count_in_no_other_one() -> None:
    """Root's neither: each has a user of its own."""
    forks = """
        import time
        count = 0
        try:
            for _ in range(10):
                if os.fork() == 0:
                    time.sleep(30)
                    os._exit(0)
                count += 1
        except BlockingIOError:
            pass
        ask("x")
        print(float(count))
    """
    episodes = play_at_once(inline(forks, processes=20, reward="stdout"), 3, AnswersTogether(3))
    assert [only.reward for (only,) in episodes] == [10.0] * 3


def test_a_program_that_asks_for_nothing_and_one_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="asked the policy for nothing"):
        play(inline("print(1)"))
    with pytest.raises(ConfigError, match="there is no such program"):
        CommandAgent(AgentCommand(command=("no-such-program-at-all",)))


@walled
@pytest.mark.slow
def test_a_program_that_hangs_is_ended_with_all_that_it_started() -> None:
    code = """
        import subprocess, time
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1234)"], start_new_session=True)
        ask("x")
        time.sleep(1234)
    """
    with pytest.raises(asyncio.TimeoutError):
        play(inline(code), within_s=3)
    assert _gone(lambda line: "sleep(1234)" in line)


@pytest.mark.parametrize("sandbox", [pytest.param("auto", marks=walled), "none"])
def test_what_a_program_leaves_behind_neither_delays_its_reward_nor_outlives_it(sandbox: Any) -> None:
    code = """
        import subprocess
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1235)"], start_new_session=True)
        ask("x")
        print(0.5)
    """
    (only,), _ = play(inline(code, reward="stdout", sandbox=sandbox))
    assert only.reward == 0.5
    assert _gone(lambda line: "sleep(1235)" in line)


def _gone(match: Callable[[str], bool]) -> bool:
    import time

    end = time.monotonic() + 5
    while time.monotonic() < end:
        lines = []
        for process in psutil.process_iter():
            try:
                lines.append(" ".join(process.cmdline()))
            except psutil.Error:
                continue
        if not any(match(line) for line in lines if "pytest" not in line):
            return True
        time.sleep(0.1)
    return False
