"""The guardian of a scoring process, with commands that do not want to end, and what is left in folders."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from headrace.sandbox import remove as removing
from headrace.sandbox.guardian import guarded
from headrace.sandbox.remove import remove

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux alone")

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 256)
        open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
        os.rename(sys.argv[1] + ".new", sys.argv[1])
        time.sleep(60)
    os._exit(0)
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
"""
"""Closes all, belongs to no group, and leaves its number in a file."""
ORPHANS = """
import os, sys, time
for _ in range(5):
    if os.fork() == 0:
        os.fork()
        os._exit(0)
    os.wait()
open(sys.argv[1], "w").close()
time.sleep(60)
"""
BUSY = "import re; re.match(r'(a+)+$', 'a' * 64 + 'b')"
"""Never lets Python run."""


class Guarded:
    """A guardian of Python code, and the run's end of its line."""

    def __init__(self, folder: Path, code: str, *arguments: str, shared: Sequence[str] = ()) -> None:
        folder.mkdir()
        self.folder = folder
        self.line, held = socket.socketpair()
        self.line.settimeout(10)
        with held:
            command = guarded(
                [sys.executable, "-c", code, *arguments],
                line=held.fileno(),
                folder=str(folder),
                passes=[],
                shared=shared,
            )
            self.process = subprocess.Popen(command, pass_fds=[held.fileno()])

    def child(self) -> psutil.Process:
        until(lambda: bool(psutil.Process(self.process.pid).children()), "the command did not start")
        return psutil.Process(self.process.pid).children()[0]

    def end(self) -> int:
        """The guardian's exit code, once the folder is gone."""
        self.line.shutdown(socket.SHUT_WR)
        code = self.process.wait(10)
        assert self.line.recv(1) == b"", "the line is closed when the folder is gone"
        assert not self.folder.exists()
        return code


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Guarded]]:
    made: list[Guarded] = []

    def start(code: str, *arguments: str, shared: Sequence[str] = ()) -> Guarded:
        made.append(Guarded(tmp_path / f"work{len(made)}", code, *arguments, shared=shared))
        return made[-1]

    yield start
    for one in made:
        one.line.close()
        one.process.kill()
        one.process.wait()


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        ("", 0),
        ("raise SystemExit(5)", 5),
        ("import os; os.kill(os.getpid(), 11)", -signal.SIGSEGV),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM),
    ],
)
def test_a_guardian_ends_as_its_command_did(started: Callable[..., Guarded], code: str, ending: int) -> None:
    one = started(code)
    assert one.process.wait(10) == ending
    assert one.line.recv(1) == b""
    assert not one.folder.exists()


@needs_linux
@pytest.mark.parametrize("after", ["import time; time.sleep(60)", BUSY, "import os; os.kill(os.getpid(), 19)", ""])
@pytest.mark.parametrize("closed", [True, False])
def test_with_the_run_ends_all_that_a_command_started(
    started: Callable[..., Guarded], tmp_path: Path, after: str, closed: bool
) -> None:
    """Also a daemon, of a command that sleeps, never lets Python run, is stopped, or ended by itself."""
    one = started(DAEMON + after, str(tmp_path / "pid"))
    until((tmp_path / "pid").exists, "no daemon")
    if not after:
        one.process.wait(10)
    if closed:  # as by the kernel when the run is killed
        one.line.close()
        assert one.process.wait(10) == (-signal.SIGKILL if after else 0)
    else:
        assert one.end() == (-signal.SIGKILL if after else 0)
    until(lambda: is_gone(int((tmp_path / "pid").read_text())), "the daemon lives on")
    until(lambda: not one.folder.exists(), "the folder is there")


@needs_linux
@pytest.mark.parametrize("after", ["time.sleep(60)", "os.kill(os.getpid(), 9)"])
def test_shared_memory_of_a_server_goes_with_it(started: Callable[..., Guarded], tmp_path: Path, after: str) -> None:
    """Also where the run is killed, or the server's own process, of which only a child has it open; and no other."""
    of_server, others = (f"/dev/shm/{name}-{os.getpid()}-{secrets.token_hex(4)}" for name in ("psm_mine", "other"))
    code = f"""
import os, sys, time
files = [open(path, "w+b") for path in sys.argv[2:]]
if os.fork() == 0:
    open(sys.argv[1], "w").close()
    time.sleep(60)
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
files[0].close()
{after}
"""
    try:
        one = started(code, str(tmp_path / "ready"), of_server, others, shared=("/dev/shm/psm_", "/dev/shm/sem."))
        until((tmp_path / "ready").exists, "the command did not start")
        if "sleep" in after:
            assert Path(of_server).exists()
            one.line.close()
        assert one.process.wait(10) == -signal.SIGKILL
        assert [Path(path).exists() for path in (of_server, others)] == [False, True]
    finally:
        for path in (of_server, others):
            Path(path).unlink(missing_ok=True)


@needs_linux
def test_a_semaphore_of_a_server_goes_with_it(started: Callable[..., Guarded], tmp_path: Path) -> None:
    """As Python's multiprocessing makes one for processes that are begun anew: mapped under another name."""
    code = """
import multiprocessing, os, sys, time
made = multiprocessing.get_context("spawn").Semaphore()
open(sys.argv[1] + ".new", "w").write(made._semlock.name)
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(60)
"""
    one = started(code, str(tmp_path / "name"), shared=("/dev/shm/sem.",))
    until((tmp_path / "name").exists, "the command did not start")
    semaphore = Path("/dev/shm") / f"sem.{(tmp_path / 'name').read_text().removeprefix('/')}"
    assert semaphore.exists()
    one.line.close()
    assert one.process.wait(10) == -signal.SIGKILL
    assert not semaphore.exists()


@needs_linux
def test_orphans_that_end_do_not_stay_as_zombies(started: Callable[..., Guarded], tmp_path: Path) -> None:
    one = started(ORPHANS, str(tmp_path / "done"))
    until((tmp_path / "done").exists, "the command did not start")
    until(lambda: len(psutil.Process(one.process.pid).children()) == 1, "more than the command")


@needs_linux
def test_a_command_ends_with_its_guardian(started: Callable[..., Guarded]) -> None:
    one = started("import time; time.sleep(60)")
    child = one.child()
    until(lambda: "time.sleep(60)" in " ".join(child.cmdline()), "the command did not start")
    one.process.kill()
    until(lambda: is_gone(child.pid), "the command lives on")


def test_a_guardian_is_not_stopped_by_what_stops_the_run(started: Callable[..., Guarded]) -> None:
    one = started("import time; time.sleep(60)")
    child = one.child()
    until(lambda: "time.sleep(60)" in " ".join(child.cmdline()), "the command did not start")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        one.process.send_signal(number)
    child.terminate()
    assert one.process.wait(10) == -signal.SIGTERM, "the command's own end"


def test_a_command_that_is_not_there_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ours, held = socket.socketpair()
    with ours, held:
        command = guarded(["/nowhere/at-all"], line=held.fileno(), folder=str(tmp_path / "absent"), passes=[])
        assert subprocess.run(command, pass_fds=[held.fileno()], check=False).returncode == 127
    assert "cannot start /nowhere/at-all" in capfd.readouterr().err


@needs_linux
def test_a_command_has_what_is_passed_to_it_and_nothing_else(tmp_path: Path) -> None:
    """Whatever the guardian was handed, the highest numbers among it."""
    code = "import os; print(*sorted(fd for fd in range(3, 4096) if os.path.lexists(f'/proc/self/fd/{fd}')))"
    ours, held = socket.socketpair()
    passed, extra = os.pipe()
    high = fcntl.fcntl(extra, fcntl.F_DUPFD, 900)
    try:
        with ours, held:
            command = guarded(
                [sys.executable, "-c", code], line=held.fileno(), folder=str(tmp_path / "absent"), passes=[passed]
            )
            handed = (held.fileno(), passed, extra, high)
            ran = subprocess.run(command, pass_fds=handed, capture_output=True, text=True, check=True)
    finally:
        for descriptor in (passed, extra, high):
            os.close(descriptor)
    assert ran.stdout.split() == [str(passed)]


def nest(folder: Path, depth: int) -> None:
    code = f"import os\nfor _ in range({depth}): os.mkdir('d'); os.chdir('d')"
    folder.mkdir()
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)


def test_folders_nested_deeper_than_python_goes_are_removed(tmp_path: Path) -> None:
    nest(tmp_path / "deep", 3000)
    remove(str(tmp_path / "deep"))
    assert not (tmp_path / "deep").exists()


def test_folders_without_rights_are_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    folder = tmp_path / "folder"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "link").symlink_to(kept)
    (folder / "a" / "b" / "file").write_text("x")
    for path in (folder / "a" / "b", folder / "a", folder):
        path.chmod(0)
    remove(str(folder))
    assert not folder.exists()
    assert (kept / "file").read_text() == "x"


def test_removing_never_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove(str(tmp_path / "absent"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    monkeypatch.setattr(shutil, "which", lambda name, path: None)
    remove(str(tmp_path / "full"))
    monkeypatch.setattr(shutil, "which", lambda name, path: "/nowhere/at-all")
    remove(str(tmp_path / "full"))
    assert (tmp_path / "full").exists()


def test_a_folder_can_be_removed_by_a_process_apart(tmp_path: Path) -> None:
    nest(tmp_path / "folder", 2)
    command = [sys.executable, "-I", "-S", str(removing.__file__), str(tmp_path / "folder")]
    assert subprocess.run(command, check=False).returncode == 0
    assert not os.path.lexists(tmp_path / "folder")
