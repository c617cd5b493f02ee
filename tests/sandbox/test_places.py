"""What a reward function sees of the folders where a machine keeps its sockets, its pipes and its passing files."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from reward_pools_running import running

from headrace.config import ConfigError
from headrace.config.reward import RewardConfig, SandboxConfig
from headrace.rewards.outcome import RewardOutcome
from headrace.rewards.reward_pool import RewardPool
from headrace.runtime.inline import SystemClock
from headrace.sandbox import places
from headrace.sandbox.places import own_places
from headrace.sandbox.walls import Walls

REWARD = '''
import os, socket

def reward(response, row):
    """1 for whatever can be reached."""
    kind, path = row["kind"], row.get("path")
    if kind == "list":
        return float(sorted(os.listdir(path)) == row["names"])
    if kind == "read":
        return float(open(path).read() == "text")
    if kind == "descend":
        return float(os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o755)
    if kind == "write":
        open(path, "w").write("x")
    if kind == "connect":
        socket.socket(socket.AF_UNIX).connect(path)
    if kind == "abstract":
        socket.socket(socket.AF_UNIX).connect(chr(0) + row["name"])
    if kind == "pipe":
        os.write(os.open(path, os.O_RDWR | os.O_NONBLOCK), b"x")
    if kind == "handle":  # open a file by what it is called on its disk, wherever it is hidden
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        handle = (ctypes.c_char * 136)(*bytes.fromhex(row["handle"]))
        root = os.open("/", os.O_RDONLY)
        fd = libc.open_by_handle_at(root, handle, 0)
        if fd < 0: raise OSError(ctypes.get_errno(), "no handle")
        return float(os.read(fd, 4) == b"text")
    if kind == "devices":
        open("/dev/null", "w").write("x")
        return float(len(open("/dev/urandom", "rb").read(8)) == 8 and open("/dev/null").read() == "")
    if kind == "uncover":
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        libc.unshare(0x10020000)
        if libc.umount2(path.encode(), 2) < 0: raise OSError(ctypes.get_errno(), "cannot")
    return 1.0
'''


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder in /tmp that is not the function's own."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="headrace-test-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def own(temporary: Path) -> str:
    (temporary / "own").mkdir()
    (temporary / "own" / "reward.py").write_text(REWARD)
    (temporary / "own" / "data").write_text("text")
    return f"{temporary}/own/reward.py:reward"


@pytest.fixture
def walls_of(tool: str) -> str:
    if tool == "none":
        pytest.skip("needs walls")
    return tool


def score(function: str, tool: str, *rows: dict[str, Any], **changes: Any) -> list[RewardOutcome]:
    async def play() -> list[RewardOutcome]:
        async with running(function, tool, **changes) as pool:
            return [await pool.score("", row, "") for row in rows]

    return asyncio.run(play())


def test_folders_of_sockets_are_empty_but_for_the_function_s_own(walls_of: str, own: str, temporary: Path) -> None:
    (temporary / "secret").write_text("text")
    name = temporary.name
    rows = [
        {"kind": "list", "path": "/run", "names": []},
        {"kind": "list", "path": "/var/run", "names": []},
        {"kind": "list", "path": str(temporary), "names": ["own"]},
        {"kind": "list", "path": f"/tmp/{name}/own", "names": ["data", "reward.py"]},
        {"kind": "read", "path": f"{temporary}/own/data"},
        {"kind": "descend", "path": f"{temporary}/own"},
    ]
    assert score(own, walls_of, *rows) == [RewardOutcome(1.0)] * len(rows)
    (hidden,) = score(own, walls_of, {"kind": "read", "path": f"{temporary}/secret"})
    assert (hidden.failure or "").startswith(
        "reward_raised: [in the sandbox; see reward.sandbox and reward.trusted] FileNotFoundError"
    ), "the user is told where to look"
    for path in ("/tmp/x", "/run/x", f"{temporary}/own/x", "/dev/x", "/dev/shm/x"):
        (written,) = score(own, walls_of, {"kind": "write", "path": path})
        assert written.value is None


@pytest.fixture
def host(temporary: Path) -> Iterator[dict[str, Path]]:
    """A socket that listens, and a pipe, of the host's."""
    folder = temporary / "host"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as abstract:
        listening.bind(str(folder / "socket"))
        listening.listen()
        abstract.bind(f"\0{temporary.name}")
        abstract.listen()
        os.mkfifo(folder / "pipe")
        for name in ("socket", "pipe"):
            os.chmod(folder / name, 0o777)
        yield {"connect": folder / "socket", "pipe": folder / "pipe"}


def test_sockets_and_pipes_of_the_host_are_out_of_reach(walls_of: str, own: str, host: dict[str, Path]) -> None:
    name = host["pipe"].parents[1].name
    rows = [{"kind": kind, "path": str(path)} for kind, path in host.items()] + [{"kind": "abstract", "name": name}]
    assert [outcome.value for outcome in score(own, walls_of, *rows)] == [None] * 3


def test_what_the_user_names_stays_visible(walls_of: str, own: str, host: dict[str, Path]) -> None:
    rows = [{"kind": kind, "path": str(path)} for kind, path in host.items()]
    folder = str(host["pipe"].parent)
    assert score(own, walls_of, *rows, read=(folder,)) == [RewardOutcome(1.0)] * 2
    assert score(own, walls_of, *rows, read=tuple(map(str, host.values()))) == [RewardOutcome(1.0)] * 2
    assert score(own, walls_of, *rows, read=("/tmp",)) == [RewardOutcome(1.0)] * 2


def test_what_is_hidden_cannot_be_uncovered(walls_of: str, own: str, temporary: Path) -> None:
    """Neither by a mount namespace of its own, nor, by root's samples, which read all files, by a file's handle."""
    import ctypes

    (temporary / "secret").write_text("text")
    handle = (ctypes.c_char * 136)(*(128).to_bytes(4, sys.byteorder))
    mount = ctypes.c_int()
    ctypes.CDLL(None).name_to_handle_at(-100, os.fsencode(temporary / "secret"), handle, ctypes.byref(mount), 0)
    rows = [{"kind": "uncover", "path": "/tmp"}, {"kind": "handle", "handle": bytes(handle).hex()}]
    assert [outcome.value for outcome in score(own, walls_of, *rows)] == [None, None]


def test_devices_are_those_that_do_nothing(walls_of: str, own: str) -> None:
    usual = ["fd", "full", "null", "random", "stderr", "stdin", "stdout", "urandom"]
    if walls_of == "bubblewrap":
        usual = sorted([*usual, "core", "ptmx", "pts", "shm", "tty", "zero"])
    rows = [{"kind": "list", "path": "/dev", "names": usual}, {"kind": "devices"}]
    assert score(own, walls_of, *rows) == [RewardOutcome(1.0)] * 2


def test_a_function_of_the_working_folder_and_a_module_are_found(
    walls_of: str, own: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"kind": "list", "path": str(temporary), "names": ["own"]}
    (temporary / "secret").write_text("text")
    monkeypatch.chdir(temporary / "own")
    for function in ("reward.py:reward", "reward:reward"):
        assert score(function, walls_of, row) == [RewardOutcome(1.0)]
    monkeypatch.chdir(temporary)
    row = {"kind": "list", "path": str(temporary), "names": ["own"]}
    assert score("own/reward.py:reward", walls_of, row) == [RewardOutcome(1.0)], "the working folder is hidden itself"


def test_a_function_right_in_tmp_has_its_file_alone(walls_of: str, temporary: Path) -> None:
    with tempfile.NamedTemporaryFile("w", dir="/tmp", prefix="headrace_test_", suffix=".py") as file:
        file.write(REWARD)
        file.flush()
        (temporary / "secret").write_text("text")
        outcomes = score(f"{file.name}:reward", walls_of, {"kind": "read", "path": f"{temporary}/secret"}, {"kind": ""})
    assert [outcome.value for outcome in outcomes] == [None, 1.0]


def test_a_link_to_a_function_is_followed(walls_of: str, own: str, temporary: Path) -> None:
    (temporary / "links").mkdir()
    (temporary / "links" / "reward.py").symlink_to(temporary / "own" / "reward.py")
    assert score(f"{temporary}/links/reward.py:reward", walls_of, {"kind": ""}) == [RewardOutcome(1.0)]


def test_a_path_to_read_that_is_not_there_is_refused() -> None:
    async def play() -> None:
        sandbox = SandboxConfig(read=("/tmp/headrace/is/not/here",))
        await RewardPool(RewardConfig(function="code", sandbox=sandbox), clock=SystemClock()).start()

    with pytest.raises(
        ConfigError, match=r"reward\.sandbox\.read has '/tmp/headrace/is/not/here', and there is no such"
    ):
        asyncio.run(play())


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Places of our own, and a Python that lies elsewhere."""
    for name in ("run", "tmp/job/code", "data"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "run" / "names").touch()
    (tmp_path / "names").symlink_to("run/names")
    monkeypatch.setattr(places, "HIDDEN", (f"{tmp_path}/run", f"{tmp_path}/tmp", f"{tmp_path}/absent"))
    monkeypatch.setattr(places, "_NAMES", f"{tmp_path}/names")
    monkeypatch.setattr(sys, "prefix", "/usr")
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "path", ["", "/usr/lib/python"])
    return tmp_path


def test_what_is_shown(paper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(*functions: str, read: tuple[str, ...] = (), network: bool = False) -> tuple[list[str], list[str]]:
        hides, shows = own_places(functions, read, network=network)
        return [os.path.relpath(one, paper) for one in hides], [os.path.relpath(one, paper) for one in shows]

    job = f"{paper}/tmp/job"
    assert shown(f"{paper}/data/f.py:f") == (["run", "tmp"], [])
    assert shown(f"{job}/f.py:f", f"{job}/code/g.py:g") == (["run", "tmp"], ["tmp/job"]), "one is in the other"
    assert shown(f"{paper}/tmp/f.py:f")[1] == [], "and the file is not there"
    Path(f"{paper}/tmp/f.py").touch()
    assert shown(f"{paper}/tmp/f.py:f")[1] == ["tmp/f.py"]
    assert shown("f.py:f", network=True)[1] == ["run/names"], "who knows names is behind a link"
    assert shown("f.py:f", read=(f"{paper}/tmp",)) == (["run"], [])
    assert shown("f.py:f", read=("/",)) == ([], [])
    assert shown("f.py:f", read=(f"{job}/code",)) == (["run", "tmp"], ["tmp/job/code"])
    (paper / "tmp" / "dangling").symlink_to("absent")
    monkeypatch.setattr(sys, "path", ["", f"{paper}/tmp/lib", f"{paper}/tmp", f"{paper}/tmp/dangling"])
    (paper / "tmp" / "lib").mkdir()
    assert shown("f.py:f")[1] == ["tmp/lib"], "but not all of a place because it is on the import path"
    monkeypatch.chdir(job)
    assert shown("module:f")[1] == ["tmp/job", "tmp/lib"] or shown("module:f")[1] == ["tmp/lib", "tmp/job"]


def test_bubblewrap_s_command_line_hides_and_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    walls = Walls("bubblewrap", 1024, False, None, hides=("/run", "/dev"), shows=("/run/a/b", "/dev/x"))
    words = " ".join(walls.around(["/bin/true"], "/run/work"))
    order = [
        "--ro-bind / /", "--tmpfs /run", "--dev /dev", "--ro-bind /dev/null /dev/zero", "--dir /run/a ",
        "--ro-bind /run/a/b /run/a/b", "--dev-bind /dev/x /dev/x", "--dir /run/work", "--remount-ro /run",
        "--remount-ro /dev", "--proc /proc", "--perms 1777 --size 1024 --tmpfs /run/work", "--chdir /run/work",
    ]  # fmt: skip
    positions = [words.index(one) for one in order]
    assert positions == sorted(positions)
