"""The base of all errors that are raised for a user to read. Below every room; imports nothing."""

from __future__ import annotations


class HeadraceError(Exception):
    """Something that a user can do something about. The message names the value or what happened, and the mend.

    The command prints it in one line, and Python's callers get it without the way that it took inside. Whatever else is
    raised is a fault, of Headrace or of code that it was given, and shows its traceback.
    """

    is_fault = False
    """Whether it stands for something else that was raised, elsewhere, and that is a fault."""
