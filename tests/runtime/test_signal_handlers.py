"""Whose handler of a signal it is that the system calls."""

from __future__ import annotations

import ctypes
import os
import signal
import threading

from headrace.runtime.ray.signal_handlers import kept_signal_handlers


def test_whatever_takes_a_signal_to_stop_in_a_thread_has_it_no_longer_behind_it() -> None:
    came: list[int] = []
    system = ctypes.CDLL(None)
    before = {number: signal.signal(number, lambda got, _: came.append(got)) for number in (2, 15)}
    try:

        def taken() -> None:
            with kept_signal_handlers():
                for number in before:
                    system.signal(number, ctypes.c_void_p(1))  # SIG_IGN, without Python's knowledge
                    os.kill(os.getpid(), number)

        for _ in range(2):
            thread = threading.Thread(target=taken)
            thread.start()
            thread.join()
        assert came == []
        for number in before:
            os.kill(os.getpid(), number)
        assert came == [2, 15]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
