"""A worker process. Run by its parent as `python -m headrace.runtime.process.child BOOT` (`Boot`, as JSON).

Imports neither torch nor transformers; what its worker imports is the worker's.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys

from headrace.runtime.collection import expect_imports
from headrace.runtime.process.boot import Boot, class_at
from headrace.runtime.process.identity import end_with_parent, name_process, open_many_files
from headrace.runtime.process.served import ServedWorker
from headrace.runtime.progress import Stuck


def main() -> None:
    boot = Boot.parse(sys.argv[1])
    os.set_inheritable(boot.listening, False)  # whatever is started here, and however
    end_with_parent(boot.parent, boot.life)
    name_process(boot.name)
    open_many_files()
    expect_imports()
    sys.path += [path for path in boot.paths if path not in sys.path]
    asyncio.run(_serve(boot))


async def _serve(boot: Boot) -> None:
    worker = ServedWorker(class_at(boot.kind, boot.packages), boot, _end)
    await worker.serve(socket.socket(fileno=boot.listening))


def _end(stuck: Stuck) -> None:
    """No thread can be made to end, but the process can; its last words say why."""
    sys.stderr.write(f"{stuck}\n")
    os._exit(1)


if __name__ == "__main__":
    main()
