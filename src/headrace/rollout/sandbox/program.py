"""Inside of the sandbox: runs one program of the model, under limits. Imports the standard library alone.

Called with two descriptors: one to read `spec` from (JSON: `code`, `limits`, `reads_all`, and of a call `call` and
`arguments`), one to report to, a JSON list a line: ["started"], then nothing, ["returned", value], ["raised", text] or
["limit", text]. What the program itself writes there can only be what it could have returned: what is right is known
to the process outside alone.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from typing import Any

from headrace.rollout.sandbox import linux
from headrace.rollout.sandbox.limits import Limits

_MOST_TEXT = 300
_REFUSED = {
    errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EFBIG, errno.ENOSPC, errno.EDQUOT,
    errno.EPERM, errno.EACCES, errno.EROFS, errno.ENETUNREACH, errno.ENETDOWN,
}  # fmt: skip
"""Errors that a limit or the sandbox gives."""


def main() -> None:
    source, report = int(sys.argv[1]), int(sys.argv[2])
    with os.fdopen(source, "rb") as file:
        spec = json.load(file)
    os.environ.clear()
    Limits(**spec["limits"]).apply(reads_all=spec["reads_all"])
    if linux.IS_LINUX:
        linux.die_with_parent()
    sys.argv[1:] = []
    _tell(report, ["started"])
    try:
        told = _run(spec)
        sys.stdout.flush()
    except BaseException as error:
        told = _failure(error)
    if told is not None:
        _tell(report, told)
    os._exit(0 if told is None or told[0] == "returned" else 1)


def _run(spec: dict[str, Any]) -> list[Any] | None:
    is_call = spec["call"] is not None
    names: dict[str, Any] = {"__name__": "program" if is_call else "__main__"}
    try:
        exec(compile(spec["code"], "<program>", "exec"), names)  # this is what the walls are for
    except SystemExit as error:
        if is_call or error.code not in (None, 0):
            raise
    return ["returned", names[spec["call"]](*spec["arguments"])] if is_call else None


def _failure(error: BaseException) -> list[Any]:
    words = f"{type(error).__name__}: {error}"[:_MOST_TEXT]
    refused = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _REFUSED)
    no_thread = isinstance(error, RuntimeError) and "start new thread" in str(error)
    no_name = type(error).__name__ == "gaierror"
    return ["limit" if refused or no_thread or no_name else "raised", words]


def _tell(report: int, message: list[Any]) -> None:
    try:
        line = json.dumps(message)
    except (TypeError, ValueError, RecursionError) as error:
        line = json.dumps(["raised", f"returned what is not JSON: {error}"[:_MOST_TEXT]])
    view = memoryview(line.encode() + b"\n")
    while view:
        view = view[os.write(report, view) :]


if __name__ == "__main__":
    main()
