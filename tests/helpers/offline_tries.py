"""Runs of `headrace sft` in this process, one after another: a line of JSON of what came of each.

python offline_tries.py '[{"config": {}, "out": "folder", "kill": 123}]'

`kill`: a process that ends by SIGKILL once the first checkpoint is there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from headrace.config import SFTConfig
from headrace.errors import HeadraceError
from headrace.observe.offline.listeners import OfflineListeners
from headrace.offline.sft import run_sft


def tried(config: dict[str, Any], out: str, kill: int | None = None) -> str:
    killed = [] if kill is None else [kill]

    def checkpoint(step: int, path: Path) -> None:
        while killed:
            os.kill(killed.pop(), signal.SIGKILL)

    def report(step: int, loss: float, rate: float) -> None: ...

    listeners, own = OfflineListeners(checkpoint=checkpoint), {"begin": "new", "report": report, "now": time.monotonic}
    try:
        return run_sft(SFTConfig.model_validate(config), Path(out), listeners=listeners, **own).status  # type: ignore[arg-type]
    except HeadraceError as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    for each in json.loads(sys.argv[1]):
        sys.stdout.write(f"{json.dumps(tried(**each))}\n")
        sys.stdout.flush()
