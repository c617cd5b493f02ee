"""The process that sends versions to one server, over a gloo group of it (rank 0) and the server's processes.

`python -m headrace.weights.gloo_sender PARENT LIFE`: the parent's number, and a pipe that the parent holds. Standard
input has what is asked, standard output what is answered, each a line of JSON: `[METHOD, {ARGUMENT: VALUE}]`, a method
of `GlooSender`, and `{"result": R}` or `{"error": WORDS, "ends": BOOL}`: whether the process ends with it. Where nobody
waits for bytes yet (`take`), it stays.

It is a process of its own because whoever waits for a peer in gloo waits until a deadline, whatever happens meanwhile.
With the process its connections end, and who waits for it at the other end is told at once.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch.distributed import PrefixStore, Store

from headrace.errors import HeadraceError
from headrace.runtime.process.identity import end_with_parent, name_process
from headrace.weights.gloo import gloo_group, listening_store
from headrace.weights.plane import WeightError
from headrace.weights.slot_format import NONE, numbers_of, slot_of
from headrace.weights.version import Version

Place = Sequence[int]
"""Of bytes in a slot: where they begin and end."""


class GlooSender:
    """What is sent lies in a slot (`slot_format.py`), and goes as it lies there."""

    def __init__(self) -> None:
        self._host = ""
        self._store: Store | None = None
        self._group: Any = None
        self._version = ExitStack()
        self._bytes = torch.empty(0, dtype=torch.uint8)
        """Of the version that was taken."""
        self._sums: list[int] = []
        """Of the places that were sent since, as whole numbers of 64 bits."""

    def listen(self, host: str, seconds: float) -> int:
        """The port of the store by which the group finds together, at an address of this machine. `seconds`: that any
        wait for somebody else may take. Raises OSError."""
        self._store, port = listening_store(host, seconds)
        self._host = host
        return port

    def join(self, prefixes: Sequence[str], size: int, seconds: float) -> None:
        """Once all of the group are there. `prefixes`: of its keys in the store, from the outermost. Raises
        RuntimeError."""
        store = self._store
        assert store is not None
        for prefix in prefixes:
            store = PrefixStore(prefix, store)
        self._group = gloo_group(store, 0, size, self._host, seconds)

    def take(self, folder: str, version: Sequence[int], tensors: Sequence[Place]) -> None:
        """From now on, what is sent is of this version. Raises OSError, and WeightError where it is not there."""
        branch, number = version
        with ExitStack() as taken:
            slot = taken.enter_context(slot_of(Path(folder), Version(branch, number)))
            told, checksum = numbers_of(slot)[3], 0
            if told != NONE:
                with memoryview(slot) as whole:
                    for begin, end in tensors:
                        checksum = zlib.crc32(whole[begin:end], checksum)
                if checksum != told:
                    raise WeightError(f"{Version(branch, number)} had not arrived whole where it was to be sent")
            self._version = taken.pop_all()
        self._bytes, self._sums = torch.frombuffer(slot, dtype=torch.uint8), []

    def send(self, places: Sequence[Place], sums: bool) -> None:
        """One broadcast for each place. Raises RuntimeError."""
        for begin, end in places:
            part = self._bytes[begin:end]
            self._group.broadcast(part, 0).wait()
            if sums:
                self._sums.append(int(part.view(torch.int64).sum()))

    def leave(self) -> None:
        """One broadcast more, of the sums, if some were to be made. Raises WeightError where the version was overtaken
        meanwhile, and RuntimeError."""
        self._version.close()
        if self._sums:
            self._group.broadcast(torch.tensor(self._sums), 0).wait()


def main() -> None:
    asked, answers = sys.stdin, os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    end_with_parent(int(sys.argv[1]), int(sys.argv[2]))
    name_process("weights by gloo")
    warnings.filterwarnings("ignore", message="The given buffer is not writable")
    torch.set_num_threads(1)
    sender = GlooSender()
    for line in asked:
        method, arguments = json.loads(line)
        try:
            answer: dict[str, Any] = {"result": getattr(sender, method)(**arguments)}
        except (HeadraceError, OSError, RuntimeError) as error:
            answer = {"error": " ".join(str(error).split()), "ends": method != "take"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if answer.get("ends"):
            return


if __name__ == "__main__":
    main()
