"""What `headrace doctor` says that the sandbox holds, by trying."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from headrace.config.errors import ConfigError
from headrace.config.reward import SandboxConfig
from headrace.rewards.promises import Promises, find_promises
from headrace.rewards.tools import find_walls, run_within
from headrace.runtime.inline import SystemClock
from headrace.runtime.protocol import Clock
from headrace.sandbox.commands import module_command
from headrace.sandbox.walls import Walls, python_files


def test_what_holds_here_is_found_by_trying() -> None:
    promises = asyncio.run(find_promises(SystemClock()))
    walls = asyncio.run(find_walls(SandboxConfig(), SystemClock(), own_function=False))
    assert promises.tool == walls.tool
    if sys.platform == "linux":
        assert promises.watches


def test_python_by_a_link_to_its_environment_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tool() -> str:
        return asyncio.run(find_walls(SandboxConfig(), SystemClock(), own_function=False)).tool

    usual = tool()
    (tmp_path / "one").symlink_to(sys.prefix)
    (tmp_path / "two").symlink_to("one")
    monkeypatch.setattr(sys, "executable", f"{tmp_path}/two/{os.path.relpath(sys.executable, sys.prefix)}")
    monkeypatch.setattr(sys, "prefix", f"{tmp_path}/two")
    assert {f"{tmp_path}/one", f"{tmp_path}/two"} < set(python_files())
    assert tool() == usual


def test_without_the_filter_it_is_not_promised() -> None:
    """As on a kernel that has none."""
    walls = asyncio.run(find_walls(SandboxConfig(tool="none"), SystemClock(), own_function=False))
    *begins, code = module_command("probe")
    unfiltered = "import headrace.sandbox.limits as l; l.refusals = lambda **_: None; probe.main()"
    code = code.replace("probe.main()", unfiltered)
    fault = asyncio.run(run_within(walls, [*begins, code], SystemClock()))
    assert fault == "it ended with exit status 1"


def test_walls_that_stood_are_not_tried_again_others_and_those_that_fell_are(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Walls] = []
    faults = iter(["no namespaces", None, None])

    async def within(walls: Walls, command: list[str], clock: Clock) -> str | None:
        tried.append(walls)
        return next(faults)

    monkeypatch.setattr("headrace.rewards.tools.run_within", within)
    monkeypatch.setattr("headrace.rewards.tools._stood", set())

    def find(disk_mib: int) -> Walls:
        config = SandboxConfig(tool="namespaces", disk_mib=disk_mib)
        return asyncio.run(find_walls(config, SystemClock(), own_function=False))

    with pytest.raises(ConfigError, match="no namespaces"):
        find(8)
    first = find(8)
    assert find(8) == first
    other = find(9)
    assert tried == [first, first, other]


@pytest.mark.parametrize(
    ("promises", "says"),
    [
        (
            Promises("namespaces", (), refuses=True, watches=True, tells_time=True),
            [
                "namespaces: programs of the model see Python's files alone",
                "memory of no process is refused",
                "is told",
            ],
        ),
        (
            Promises("none", ("nsjail: no program nsjail",), refuses=False, watches=True, tells_time=False),
            ["none works: .* (nsjail: no program nsjail)", "memory of no process (memfd_create) is not", "is not told"],
        ),
        (
            Promises("none", (), refuses=False, watches=False, tells_time=False),
            ["none works", "limited for each process of a sample, but not for all together", "is not told"],
        ),
    ],
)
def test_the_words_say_what_holds(promises: Promises, says: list[str]) -> None:
    found = dict(promises.words())
    assert list(found) == ["sandbox", "sandbox:memory", "sandbox:time"]
    for text, expected in zip(found.values(), says, strict=True):
        for part in expected.split(" .* "):
            assert part in text


def test_without_the_filter_agents_reach_unix_sockets_that_they_see() -> None:
    found = dict(Promises("nsjail", (), refuses=False, watches=True, tells_time=True).words())
    assert "Unix sockets of the files that they see" in found["sandbox:agents"]
