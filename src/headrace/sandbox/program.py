"""Inside of the sandbox: runs one program of the model, under limits. Imports the standard library alone.

Called with two descriptors: one to read `spec` from (JSON: `code`, `limits`, `reads_all`, and of a call `call` and
`arguments`), and a socket to report to, a JSON list a line: ["started"], which has to be answered before the program
begins; then nothing, or ["returned", value]. What the program itself writes there can only be what it could have
returned: what is right is known to the process outside alone.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from headrace.sandbox import linux
from headrace.sandbox.limits import Limits


def main() -> None:
    source, report = int(sys.argv[1]), int(sys.argv[2])
    with os.fdopen(source, "rb") as file:
        spec = json.load(file)
    os.environ.clear()
    Limits(**spec["limits"]).apply(reads_all=spec["reads_all"], is_filtered=False)
    if linux.IS_LINUX:
        linux.die_with_parent()
    sys.argv[1:] = []
    _tell(report, ["started"])
    if not os.read(report, 1):
        os._exit(1)
    try:
        returned = _run(spec)
        sys.stdout.flush()
        if returned:
            _tell(report, ["returned", *returned])
    except BaseException:
        os._exit(1)
    os._exit(0)


def _run(spec: dict[str, Any]) -> list[Any]:
    """What was returned, or nothing of a program that is not called."""
    is_call = spec["call"] is not None
    names: dict[str, Any] = {"__name__": "program" if is_call else "__main__"}
    try:
        exec(compile(spec["code"], "<program>", "exec"), names)  # this is what the walls are for
    except SystemExit as error:
        if is_call or error.code not in (None, 0):
            raise
    return [names[spec["call"]](*spec["arguments"])] if is_call else []


def _tell(report: int, message: list[Any]) -> None:
    view = memoryview(json.dumps(message).encode() + b"\n")
    while view:
        view = view[os.write(report, view) :]


if __name__ == "__main__":
    main()
