"""Ranks that compute together, each a process of its own, over cases that a test names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HELPERS = Path(__file__).parent
_AS_SCRIPT = """
import gc, runpy, sys
gc.set_threshold(50_000)  # as `expect_imports`
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_ranks(script: str, folder: Path, cases: Sequence[dict[str, Any]], count: int) -> None:
    """`python SCRIPT FOLDER RANK`, of each rank. The cases are in `cases.json`; each has a folder of its own there."""
    (folder / "cases.json").write_text(json.dumps(cases))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HELPERS), *sys.path])}
    command = [sys.executable, "-c", _AS_SCRIPT, str(HELPERS / script), str(folder)]
    started = [
        subprocess.Popen(
            [*command, str(rank)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(count)
    ]
    try:
        said = [process.communicate(timeout=450)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * count, "\n".join(each[-2000:] for each in said)
