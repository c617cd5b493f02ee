"""What a process that ends at once owes to its terminal."""

from __future__ import annotations

import os


def show_cursor(descriptor: int) -> None:
    """A live view hides it. Safe in a signal handler."""
    if os.isatty(descriptor):
        os.write(descriptor, b"\x1b[?25h\r\n")
