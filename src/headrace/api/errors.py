"""Which errors are meant for the user, and how they reach one who calls from Python."""

from __future__ import annotations

from headrace.errors import HeadraceError

_IN_PYTHON = {
    "--resume": "resume=True",
    "another --dir": "another dir",
    "--dir": "dir",
    ", erase it and begin again with --fresh": "",
    ", erase it with --fresh": "",
    ", replace it with --fresh": "",
    " erase it with --fresh, or give": " give",
    ", or begin again with --fresh": "",
    "begin again with --fresh": "begin again in another dir",
    "--smooth": "smooth",
    "-o ": "path ",
    "--grep": "grep",
}
"""What messages name options, and what these are in Python."""


def is_told(error: BaseException) -> bool:
    """Whether its message is meant for the user; anything else is a fault, and shows its traceback."""
    return isinstance(error, HeadraceError) and not error.is_fault


def for_caller(error: BaseException) -> BaseException:
    """`error`, to be raised to the caller: one whose words are for the user comes without the way that it took inside,
    and names arguments in the place of a command's options."""
    if not is_told(error):
        return error
    error.__cause__ = error.__context__ = None
    if len(error.args) == 1 and isinstance(error.args[0], str):
        words = error.args[0]
        for option, argument in _IN_PYTHON.items():
            words = words.replace(option, argument)
        error.args = (words,)
    return error.with_traceback(None)
