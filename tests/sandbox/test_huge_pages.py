"""Huge pages: which memory is put into them, and that a process goes on as before."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.sandbox.huge_pages import well_used

SMAPS = """\
55d000000000-55d000400000 rw-p 00000000 00:00 0                          [heap]
Size:               4096 kB
Anonymous:          4000 kB
VmFlags: rd wr mr mw me ac
7f0000000000-7f0000800000 rw-p 00000000 00:00 0
Size:               8192 kB
Anonymous:            12 kB
7f0001000000-7f0001400000 r--p 00000000 00:00 0
Size:               4096 kB
Anonymous:          4096 kB
7f0002000000-7f0002400000 rw-p 00000000 08:01 1234                       /usr/lib/libc.so.6
Size:               4096 kB
Anonymous:          4096 kB
7f0003000000-7f0003400000 rw-s 00000000 00:01 77                         /dev/shm/a
Size:               4096 kB
Anonymous:          4096 kB
7ffc00000000-7ffc00400000 rw-p 00000000 00:00 0                          [stack]
Size:               4096 kB
Anonymous:          4096 kB
7f0004000000-7f0004200000 rw-p 00000000 00:00 0
Size:               2048 kB
Anonymous:          1024 kB
"""


def test_private_memory_without_a_file_that_is_in_use_is_meant() -> None:
    assert list(well_used(SMAPS)) == [(0x55D000000000, 0x55D000400000), (0x7F0004000000, 0x7F0004200000)]


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
def test_what_is_in_memory_stays_as_it_was_also_in_a_fork() -> None:
    code = """
import os
from headrace.sandbox.huge_pages import collapse
data = [bytes([i % 256]) * 70_000 for i in range(200)]
assert collapse() >= 0
child = os.fork()
if child == 0:
    data[7] = b"other"
    os._exit(0 if all(data[i] == bytes([i % 256]) * 70_000 for i in range(200) if i != 7) else 1)
_, status = os.waitpid(child, 0)
assert status == 0
assert all(data[i] == bytes([i % 256]) * 70_000 for i in range(200))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
