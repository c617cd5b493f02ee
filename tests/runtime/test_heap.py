"""What the C library keeps of memory that was freed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.runtime.heap import Heap, own_heap, resident_bytes

GIB = 1 << 30


def test_it_is_given_back_once_it_has_grown_much() -> None:
    sizes = [0.9, 1.1, 0.8, 1.9, 2.1, 0.5, 1.0, 1.3, 0.6]  # GiB: as asked, and after each time that it was trimmed
    trimmed = []
    heap = Heap(lambda: int(sizes.pop(0) * GIB), lambda: trimmed.append(len(sizes)))
    given = [heap.give_back() for _ in range(6)]
    #        0.9 is little; 1.1 -> 0.8; 1.9 is less than 2.5 times that; 2.1 -> 0.5; 1.0 is little; 1.3 -> 0.6
    assert given == [False, True, False, True, False, True]
    assert trimmed == [7, 4, 1]


def test_without_such_a_call_nothing_is_done() -> None:
    assert not Heap(lambda: 100 * GIB, None).give_back()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's")
def test_pages_between_what_is_in_use_go_back_to_the_system() -> None:
    """1.5 GB of pieces that are too small to be mapped by themselves, each second one held."""
    script = (
        "import ctypes\n"
        "from headrace.runtime.heap import own_heap, resident_bytes\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]\n"
        "libc.free.argtypes = [ctypes.c_void_p]\n"
        "pieces = [libc.malloc(64 << 10) for _ in range(24_000)]\n"
        "for piece in pieces: ctypes.memset(piece, 1, 64 << 10)\n"
        "for piece in pieces[::2]: libc.free(piece)\n"
        "before = resident_bytes()\n"
        "assert own_heap().give_back()\n"
        "assert not own_heap().give_back()\n"
        "print(before, resident_bytes())\n"
    )
    made = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    before, after = map(int, made.stdout.split())
    assert before > 1.4 * GIB
    assert after < 0.6 * before


def test_that_of_this_process_is_one() -> None:
    assert own_heap() is own_heap()
    assert resident_bytes() > 0
