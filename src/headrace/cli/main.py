"""Parses the command line and calls one command; the one place where errors become messages and exit codes."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn

from headrace.cli.commands import make_parser
from headrace.config.errors import ConfigError
from headrace.observe.untrusted import visible
from headrace.runtime.collection import expect_imports

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM)
"""What asking whether a path is there raises, wherever that is."""
_BAD_INPUT, _FAILED, _UNREAD = 2, 1, 141
"""The last as of a program that SIGPIPE ends."""
_IDLE_S = 0.2
"""A thread without a call has ended by then."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 1 failed while running, 2 bad input, 130 interrupted, 141 nobody reads what is printed."""
    parser = make_parser()
    args, rest = parser.parse_known_args(argv)
    if unknown := [word for word in rest if word.startswith("-") or "=" not in word]:
        parser.error(f"unknown argument {unknown[0]!r}; see headrace {args.command} --help")
    if hasattr(args, "overrides"):
        args.overrides = [*args.overrides, *rest]
    elif rest:
        parser.error(f"headrace {args.command} takes no key=value, and was given {rest[0]!r}")
    run: Callable[[argparse.Namespace], int] = import_module(f"headrace.cli.{args.module}").run
    try:
        if getattr(args, "dir", None) == "":
            raise ConfigError("--dir is empty; give a folder")
        code = run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        from headrace.cli.piped import discard_output, has_reader

        if has_reader():
            raise
        discard_output()
        return _UNREAD
    except ConfigError as error:
        print(f"headrace: {visible(str(error))}", file=sys.stderr)
        return _BAD_INPUT
    except KeyboardInterrupt:
        print("headrace: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            from headrace.cli.piped import discard_output

            discard_output()
            print(f"headrace: no space left to write {error.filename or 'the output'}; free some", file=sys.stderr)
            return _FAILED
        if isinstance(error, OSError) and error.errno in _NO_PATH and error.filename:
            print(f"headrace: {error.filename}: {error.strerror}; give another path, or mend this one", file=sys.stderr)
            return _BAD_INPUT
        from headrace.api.errors import is_told

        if not is_told(error):
            raise
        print(f"headrace: {visible(str(error))}", file=sys.stderr)
        return _BAD_INPUT if type(error).__name__ in _REFUSALS else _FAILED


_REFUSALS = ("RunInUse", "RunMissing", "RunExists", "ConfigMismatch", "ClusterRefusal")
"""Errors that say no to the command, rather than that something broke."""


def entry() -> NoReturn:
    """`main` as a process, which ends even if a call of the user's never returns."""
    expect_imports()
    try:
        code = main()
    except BaseException:
        if not _is_held():
            raise
        traceback.print_exc()
        code = 1
    if _is_held():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # Python, on its way out, would take the thread's ground away under it
    sys.exit(code)


def _is_held() -> bool:
    """Whether a call on a thread was left behind."""
    from headrace.runtime.lane_thread import NAME_PREFIX

    threads = [thread for thread in threading.enumerate() if thread.name.startswith(NAME_PREFIX)]
    for thread in threads:
        thread.join(_IDLE_S)
    return any(thread.is_alive() for thread in threads)


if __name__ == "__main__":
    entry()
