"""The forwarder beside an agent's program: one user's, and out of its reach."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from another_user import USER, as_another

from headrace.sandbox.commands import module_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")


def forwarded(code: str, tmp_path: Path) -> Any:
    """What a program prints, as JSON, whose forwarder has its own user. One that is root's, and becomes a user only
    then, is out of its program's reach anyway."""
    spec = {
        "socket": str(tmp_path / "no.sock"),
        "variables": {"API": "/v1"},
        "user": USER,
        "memory_bytes": 1 << 50,
        "processes": 50,
    }
    line = module_command("forward", json.dumps(spec), sys.executable, "-c", textwrap.dedent(code), libraries=False)
    done = subprocess.run(as_another(line), capture_output=True, text=True, timeout=30, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_program_reaches_into_neither_its_forwarder_nor_any_other_process(tmp_path: Path) -> None:
    """What it made it do would be done without the filter that refuses Unix sockets."""
    code = """
        import ctypes, errno, json, os, subprocess, sys
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        SEIZE, READ, WRITE, GET = 0x4206, "process_vm_readv", "process_vm_writev", 438
        data = ctypes.create_string_buffer(8)
        class Span(ctypes.Structure):
            _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
        own = Span(ctypes.addressof(data), 8)
        def refused(code):
            return code < 0 and ctypes.get_errno() == errno.EPERM
        def copied(name, pid):
            one = ctypes.c_ulong(1)
            return getattr(libc, name)(pid, ctypes.byref(own), one, ctypes.byref(own), one, ctypes.c_ulong(0))
        def opens(pid):
            try:
                os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))
            except PermissionError:
                return False
            return True
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        tries = {}
        for who, pid in (("forwarder", os.getppid()), ("child", child.pid)):
            descriptor = os.pidfd_open(pid)
            tries[who] = {
                "ptrace": refused(libc.ptrace(SEIZE, pid, None, None)),
                "process_vm_readv": refused(copied(READ, pid)),
                "process_vm_writev": refused(copied(WRITE, pid)),
                "pidfd_getfd": refused(libc.syscall(ctypes.c_long(GET), descriptor, 0, 0)),
            }
        child.communicate()
        print(json.dumps([tries, opens(os.getppid())]))
    """
    tries, opens = forwarded(code, tmp_path)
    assert all(tries["forwarder"].values()), tries
    assert all(tries["child"].values()), tries
    assert not opens, "its memory is a file, too"


def test_usual_programs_run_beside_it(tmp_path: Path) -> None:
    programs = [["bash", "-c", "echo $((1 + 1)) | cat"], ["git", "--version"], [sys.executable, "-c", "print(2)"]]
    known = [each for each in programs if shutil.which(each[0])]
    code = f"""
        import json, os, subprocess
        orphan = subprocess.Popen(["sh", "-c", "sleep 0.01 & exec true"])
        print(json.dumps([
            [subprocess.run(each, capture_output=True).returncode for each in {known!r}],
            os.environ["API"].startswith("http://127.0.0.1:"),
        ]))
    """
    assert forwarded(code, tmp_path) == [[0] * len(known), True]
