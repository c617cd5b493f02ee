"""Memory in the sandbox: programs that gather more than all of a sample may have, and would be right if they got it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from reward_pools_running import running
from sandbox_helpers import score

from headrace.rewards.outcome import RewardOutcome
from headrace.sandbox import call_filter
from headrace.sandbox.meters import MemoryMeter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what processes use")

SIX = [{"output": "6"}]
LIMIT_MIB = 256
START = """
import ctypes, mmap, os, select, socket, time
M = 1 << 20
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
def said(code):
    if code < 0: raise OSError(ctypes.get_errno(), "refused")
    return code
def children(count, work, stays_s=5):
    '''Each works, says so and stays.'''
    reading, writing = os.pipe()
    for i in range(count):
        if os.fork() == 0:
            work(); os.write(writing, b"x"); time.sleep(60); os._exit(0)
    ready = 0
    while ready < count: ready += len(os.read(reading, 99))
    time.sleep(stays_s)
def touch(data):
    for place in range(0, len(data), 4096): data[place] = 1
"""
END = "\nprint(6, flush=True); os._exit(0)"
HOARDS = {
    "children": "children(5, lambda: touch(bytearray(120 * M)))",
    "children that write what they share": "data = bytearray(150 * M)\nchildren(4, lambda: touch(data))",
    "grandchildren": "children(3, lambda: children(2, lambda: touch(bytearray(100 * M))))",
    "daemons": """
reading, writing = os.pipe()
for _ in range(4):
    if os.fork() == 0:
        if os.fork(): os._exit(0)
        os.setsid(); touch(bytearray(120 * M)); os.write(writing, b"x"); time.sleep(60)
ready = 0
while ready < 4: ready += len(os.read(reading, 9))
time.sleep(5)
""",
    "a chain of processes": """
data = bytearray(100 * M)
def chain():
    end = time.monotonic() + 5
    while time.monotonic() < end:
        touch(data)
        if os.fork(): os._exit(0)
for _ in range(4):
    if os.fork() == 0: chain(); time.sleep(60)
time.sleep(5)
""",
    "memfd": """
for _ in range(200):
    fd = os.memfd_create("x")
    for _ in range(4): os.write(fd, bytes(M))
""",
    "memfd by number": """
number = 319 if os.uname().machine == "x86_64" else 279
for _ in range(200): os.write(said(libc.syscall(number, b"x", 0)), bytes(4 * M))
""",
    "shared mappings": "children(5, lambda: touch(mmap.mmap(-1, 100 * M)))",
    "shared mappings that are hardly mapped": """
for _ in range(5):
    place = libc.mmap(None, 100 * M, 3, 0x21, -1, 0)
    if place == 2**64 - 1: raise OSError
    ctypes.memset(place, 1, 100 * M)
    libc.munmap(ctypes.c_void_p(place + 4096), 100 * M - 4096)
""",
    "segments of shared memory": """
libc.shmat.restype = ctypes.c_void_p
for _ in range(6):
    place = libc.shmat(said(libc.shmget(0, 80 * M, 0o1600)), None, 0)
    ctypes.memset(place, 1, 80 * M); libc.shmdt(ctypes.c_void_p(place))
""",
    "messages": """
text = (ctypes.c_char * 8008)(1)
for _ in range(25_000):
    queue = said(libc.msgget(0, 0o1600))
    for _ in range(2): libc.msgsnd(queue, text, 8000, 0o4000)
""",
    "semaphores": "for _ in range(200): said(libc.semget(0, 32_000, 0o1600))",
    "pages in pipes": """
class Part(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
for _ in range(20):
    place = libc.mmap(None, 34 * M, 3, 0x22, -1, 0)
    place, whole = (place + 2 * M - 1) // (2 * M) * 2 * M, place
    libc.madvise(ctypes.c_void_p(whole), 34 * M, 14); ctypes.memset(whole, 1, 34 * M)
    reading, writing = os.pipe()
    for i in range(15): said(libc.vmsplice(writing, ctypes.byref(Part(place + 2 * M * i, 4096)), 1, 0))
    libc.munmap(ctypes.c_void_p(whole), 34 * M)
""",
    "a file system of its own": """
said(libc.unshare(0x10020000)); said(libc.mount(b"none", os.getcwdb(), b"tmpfs", 0, b"size=4g")); os.chdir(os.getcwd())
for i in range(100): open(str(i), "wb").write(bytes(4 * M))
""",
    "files": "for i in range(100): open(f'{i}', 'wb').write(bytes(4 * M))",
    "files that have no name": """
for i in range(100):
    file = open("f", "wb"); file.write(bytes(4 * M)); file.flush(); os.dup(file.fileno()); os.remove("f")
""",
    "files of shared memory": "for i in range(100): open(f'/dev/shm/headrace-test-{i}', 'wb').write(bytes(4 * M))",
    "mappings of zeros": """
fd = os.open("/dev/zero", os.O_RDWR)
for _ in range(5):
    place = libc.mmap(None, 100 * M, 3, 1, fd, 0)
    if place == 2**64 - 1: raise OSError
    ctypes.memset(place, 1, 100 * M)
    libc.munmap(ctypes.c_void_p(place + 4096), 100 * M - 4096)
""",
    "sockets": """
kept = []
def fill():
    kept.extend(socket.socketpair())
    for one in kept[-2:]:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24); one.setblocking(False)
        try:
            for _ in range(16): one.send(bytes(65536))
        except BlockingIOError: pass
children(8, lambda: [fill() for _ in range(60)])
""",
    "page tables": """
def spread():
    for i in range(20_000):
        place = libc.mmap((4096 + i) << 30, 4096, 1, 0x100022, -1, 0)
        if place == 2**64 - 1: raise OSError
        ctypes.string_at(place, 1)
children(2, spread)
""",
}  # fmt: skip
NEED_WALLS = {"files", "files that have no name", "files of shared memory", "mappings of zeros", "sockets"}
"""Without walls files are on the host, and so is the list of sockets: docs/workflows.md says so."""
SMALL = [
    "children(4, lambda: touch(bytearray(20 * M)), 0.3)",
    "data = bytearray(150 * M); touch(data)\nchildren(4, lambda: None, 0.3)",
    "data = bytearray(150 * M); touch(data)\nimport subprocess\nfor _ in range(20): subprocess.run(['/bin/true'])",
    "import threading\nt = threading.Thread(target=lambda: touch(bytearray(50 * M))); t.start(); t.join()",
    "open('f', 'wb').write(bytes(2 * M))\nwith open('f', 'r+b') as f: touch(mmap.mmap(f.fileno(), 0))",
    "import asyncio\nasync def f(): await asyncio.sleep(0.05)\nasyncio.run(f())",
]


@pytest.mark.parametrize("kind", ["processes", pytest.param("no process", marks=pytest.mark.slow)])
@pytest.mark.usefixtures("patient")
def test_a_sample_never_has_more_memory_than_it_may(tool: str, kind: str) -> None:
    names = [name for name in HOARDS if tool != "none" or name not in NEED_WALLS]
    names = [name for name in names if (name in list(HOARDS)[:5]) == (kind == "processes")]
    programs = [START + HOARDS[name] + END for name in names]
    outcomes = score(*programs, tests=SIX, tool=tool, memory_mib=LIMIT_MIB, timeout_s=10)
    assert dict(zip(names, outcomes, strict=True)) == dict.fromkeys(names, RewardOutcome(0.0))


@pytest.mark.usefixtures("patient")
def test_what_stays_below_is_left_alone(tool: str) -> None:
    """Also where processes share most of what each has, or a child still has all that its parent has."""
    outcomes = score(*(START + one + END for one in SMALL), tests=SIX, tool=tool, memory_mib=LIMIT_MIB, timeout_s=10)
    assert dict(zip(SMALL, outcomes, strict=True)) == dict.fromkeys(SMALL, RewardOutcome(1.0))


def test_a_reward_function_that_has_more_memory_fails_with_the_reason(tool: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def f(response, row):\n    exec(response, {'__name__': 'own'})\n    return 1.0")

    async def play() -> list[RewardOutcome]:
        async with running(f"{tmp_path}/own.py:f", tool, memory_mib=LIMIT_MIB) as pool:
            return [await pool.score(START + code, {}, "") for code in (HOARDS["children"], HOARDS["memfd"], SMALL[0])]

    children, memfd, small = asyncio.run(play())
    assert children.failure == (
        f"reward_limit: its processes had more than {LIMIT_MIB} MiB (reward.sandbox.memory_mib) together"
    )
    assert (memfd.failure or "").startswith("reward_raised: [in the sandbox; see reward.sandbox and reward.trusted]")
    assert small == RewardOutcome(1.0)


def run(code: str) -> Any:
    """What `code` prints as JSON, of its last line."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


FILTERED = """
import ctypes, json, os, sys
from headrace.sandbox import call_filter, linux
linux.gain_nothing()
linux.filter_calls(call_filter.refusals(is_program=IS_PROGRAM))
libc = ctypes.CDLL(None, use_errno=True)
def errno_of(number, *arguments):
    values = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    return 0 if libc.syscall(ctypes.c_long(number), *values) >= 0 else ctypes.get_errno()
"""


def filtered(code: str, *, is_program: bool) -> Any:
    return run(FILTERED.replace("IS_PROGRAM", str(is_program)) + code)


@pytest.mark.parametrize("is_program", [False, True])
def test_each_call_is_refused_and_nothing_else_is(is_program: bool) -> None:
    column = list(call_filter._MACHINES).index(os.uname().machine)
    refused = [numbers[column] for numbers in call_filter._CALLS.values()]
    scheduling = [numbers[column] for numbers in call_filter._SCHEDULING.values()]
    found = filtered(
        f"""
calls = {refused + scheduling}
found = {{number: errno_of(number) for number in calls}}
with open(__import__("shutil").which("true"), "rb") as file:
    mapped = __import__("mmap").mmap(file.fileno(), 0, prot=1)
private = __import__("mmap").mmap(-1, 4096, flags=0x22)
__import__("threading").Thread(target=print).start()
pid = os.fork()
if pid == 0: os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert __import__("subprocess").run(["/bin/true"]).returncode == 0
assert len(__import__("socket").socketpair()) == 2
print(json.dumps(found))
""",
        is_program=is_program,
    )
    assert [found[str(number)] for number in refused] == [errno.EPERM] * len(refused)
    assert [found[str(number)] == errno.EPERM for number in scheduling] == [is_program] * len(scheduling)


def test_what_arguments_decide() -> None:
    found = filtered(
        """
import socket
def raised(call):
    try: call()
    except OSError as error: return error.errno
import mmap
x86 = os.uname().machine == "x86_64"
clone, clone3, unshared, ns = (56 if x86 else 220), 435, 0x10000000, 17
pid = libc.syscall(clone, ns, 0, 0, 0, 0)
if pid == 0: os._exit(0)
one, other = socket.socketpair()
one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
print(json.dumps([
    pid > 0, errno_of(clone, unshared | 17), errno_of(clone3),
    raised(lambda: mmap.mmap(-1, 4096)), raised(lambda: mmap.mmap(-1, 4096, flags=0x22)),
    raised(lambda: socket.socket(socket.AF_INET)), raised(lambda: socket.socket(socket.AF_UNIX)),
    one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < 1 << 20, errno_of(24 if x86 else 124),
]))
""",
        is_program=True,
    )
    assert found == [True, errno.EPERM, errno.ENOSYS, errno.EPERM, None, errno.EPERM, None, True, 0]


def test_unix_sockets_are_refused_but_for_pairs_that_reach_nobody_else() -> None:
    found = filtered(
        """
import socket
linux.filter_calls(call_filter.no_unix_sockets())
def raised(call, *arguments):
    try: call(*arguments)
    except OSError as error: return error.errno
kinds = (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM, socket.SOCK_RAW)
print(json.dumps([
    raised(socket.socket, socket.AF_INET),
    [raised(socket.socket, socket.AF_UNIX, kind) for kind in kinds],
    [raised(socket.socketpair, socket.AF_UNIX, kind) for kind in kinds],
]))
""",
        is_program=False,
    )
    refused = errno.EAFNOSUPPORT
    assert found == [None, [refused] * 4, [None, None, refused, refused]]


@pytest.mark.parametrize(
    ("machine", "header"),
    [("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "/usr/include/asm-generic/unistd.h")],
)
def test_calls_have_the_numbers_that_the_kernel_s_headers_have(machine: str, header: str) -> None:
    if not os.path.exists(header):
        pytest.skip(f"no {header}")
    column = list(call_filter._MACHINES).index(machine)
    listed = {
        name: int(number)
        for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(header).read_text())
    }
    ours = {
        **call_filter._CALLS, **call_filter._SCHEDULING, "sched_yield": call_filter._YIELD, "clone": call_filter._CLONE,
        "clone3": call_filter._CLONE3, "mmap": call_filter._MMAP, "socket": call_filter._SOCKET,
        "setsockopt": call_filter._SET_SOCKET, "socketpair": call_filter._SOCKET_PAIR,
    }  # fmt: skip
    known = {name: numbers[column] for name, numbers in ours.items() if name in listed}
    assert known == {name: listed[name] for name in known}
    assert len(known) > 30


def test_machines_whose_calls_are_not_known_have_no_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert call_filter.refusals(is_program=True) is None
    assert call_filter.no_unix_sockets() is None


FAMILY = """
import json, os, sys, time
from headrace.sandbox.descendants import *
from headrace.sandbox.tree import *
reading, writing = os.pipe()
data = bytearray(64 << 20)
for i in range(0, len(data), 4096): data[i] = 1
def child(work):
    pid = os.fork()
    if pid == 0:
        work(); os.write(writing, b"x"); time.sleep(60); os._exit(0)
    os.read(reading, 1)
    return pid
"""


def test_the_tree_of_processes_is_found_either_way() -> None:
    listed, by_parents, own = run(
        FAMILY
        + """
pids = [child(lambda: child(lambda: None)), child(lambda: None)]
listed, by_parents = descendants(), descendants_by_parents()
for pid in listed: os.kill(pid, 9)
print(json.dumps([listed, by_parents, [os.getpid(), *pids]]))
"""
    )
    assert listed == by_parents
    assert len(listed) == 3
    assert sorted(listed.values()) == sorted([own[0], own[0], own[1]])


def test_shared_memory_counts_once_where_it_matters() -> None:
    """Two children of 64 MiB that they share with their parent, of which one writes half of it."""
    plain, exact, gone = run(
        FAMILY
        + """
def write():
    for i in range(0, 32 << 20, 4096): data[i] = 2
pids = [child(lambda: None), child(write)]
tree = descendants()
plain, gone = memory_of(tree)
exact = exact_memory_of(tree)
for pid in pids: os.kill(pid, 9); os.waitpid(pid, 0)
print(json.dumps([plain >> 20, exact >> 20, [gone, *memory_of(tree)]]))
"""
    )
    assert 128 <= plain < 180
    third, half = 64 // 3, 16 // 1
    assert third * 2 - 10 + half < exact < 128, "two thirds of what three share, and what is its own"
    assert gone == [0, 0, 2]


def test_between_vfork_and_exec_memory_counts_once() -> None:
    plain, exact = run(
        FAMILY
        + """
import ctypes, threading
def spawn(): ctypes.CDLL(None).syscall(56 if os.uname().machine == "x86_64" else 220, 0x4111, 0, 0, 0, 0)
def between():
    # a child that shares all memory, as long as it sleeps
    flags, libc = 0x4111, ctypes.CDLL(None)
    stack = ctypes.create_string_buffer(1 << 16)
    call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    sleep = ctypes.cast(libc.sleep, ctypes.c_void_p).value
    libc.clone.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    libc.clone(sleep, ctypes.addressof(stack) + (1 << 16) - 16, flags, 60)
middle = child(lambda: threading.Thread(target=between).start())
while len(descendants()) < 2: time.sleep(0.01)
tree = descendants()
print(json.dumps([memory_of(tree)[0] >> 20, exact_memory_of(tree) >> 20]))
sys.stdout.flush()
for pid in tree: os.kill(pid, 9)
"""
    )
    assert plain >= 128
    assert exact < 80


def test_a_meter_looks_again_before_the_limit_could_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 4 GiB/s: 1 MiB is left for 0.24 ms, less than the least of 5 ms; 256 MiB for 62.5 ms; 1 GiB for over 100."""
    gib = 1 << 30
    used = [0]
    monkeypatch.setattr("headrace.sandbox.meters.descendants", dict)
    monkeypatch.setattr("headrace.sandbox.meters.memory_of", lambda tree: (used[0], 0))
    monkeypatch.setattr("headrace.sandbox.meters.exact_memory_of", lambda tree: used[0])
    monkeypatch.setattr("headrace.sandbox.meters.living_of", set)
    meter = MemoryMeter(gib, "host")
    for used[0], expected in (
        (gib - (1 << 20), (False, 0.005)),
        (gib - (256 << 20), (False, 0.0625)),
        (0, (False, 0.1)),
        (gib, (False, 0.005)),
        (gib + 1, (True, 0.005)),
    ):
        assert meter.look(0.0) == pytest.approx(expected)


def test_what_processes_shared_is_read_again_where_one_ends_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two share 1.5 GiB: of the first 0.75 are read, then it ends, and of the second all 1.5."""
    gib = 1 << 30
    living, exact = {7, 8}, iter([int(2.25 * gib), int(1.5 * gib), int(2.25 * gib)])

    def read(tree: object) -> int:
        living.discard(7)
        return next(exact)

    monkeypatch.setattr("headrace.sandbox.meters.descendants", lambda: dict.fromkeys(living, 1))
    monkeypatch.setattr("headrace.sandbox.meters.memory_of", lambda tree: (3 * gib, 0))
    monkeypatch.setattr("headrace.sandbox.meters.living_of", lambda tree: set(living))
    monkeypatch.setattr("headrace.sandbox.meters.exact_memory_of", read)
    meter = MemoryMeter(2 * gib, "host")
    assert meter.look(0.0)[0] is False
    assert meter.look(0.1)[0] is True, "the same processes before and after: it is believed"
