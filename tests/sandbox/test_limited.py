"""A command under limits where no walls stand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from another_user import USER, as_another

from headrace.sandbox.commands import module_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limits are Linux's")


def limited(*command: str) -> list[str]:
    spec = {"user": USER, "memory_bytes": 1 << 50, "processes": 10}
    return module_command("limited", json.dumps(spec), *command, libraries=False)


def ran(line: list[str]) -> tuple[int, str]:
    done = subprocess.run(line, capture_output=True, text=True, timeout=30, check=False, cwd="/")
    return done.returncode, (done.stdout + done.stderr).strip()


def test_of_a_user_with_other_processes_the_commands_own_alone_count() -> None:
    code = "import subprocess, time; held = [subprocess.Popen(['sleep', '2']) for _ in range({})]; time.sleep(1)"
    few, many = (as_another(limited(sys.executable, "-c", code.format(count))) for count in (6, 30))
    with subprocess.Popen(as_another([sys.executable, "-c", code.format(30)])) as others:
        assert ran(few) == (0, "")
        assert ran(many) == (124, "it had more than 10 processes and threads (rollout.agent.processes)")
        others.kill()


@pytest.mark.parametrize(("code", "status"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_it_ends_as_the_command_does(code: str, status: int) -> None:
    assert ran(limited(sys.executable, "-c", code)) == (status, "")


def test_what_cannot_be_run_is_said(tmp_path: Path) -> None:
    file = tmp_path / "program"
    file.write_text("#!/bin/sh\n")
    file.chmod(0o700)
    assert ran(limited("/no/such")) == (127, "/no/such: No such file or directory")
    if os.geteuid() == 0:
        assert ran(limited(str(file))) == (127, f"{file}: Permission denied (as user {USER})")
