"""A process that keeps a run busy and says what it has done, until it is killed. `python store_kill_child.py RUN SEED`

Lines on stdout, each written after the call it tells of returned (but for `generate`, before it begins):
`version N`, `generate E P A`, `journalled E P A`, `ready E P A`, `dropped E P A`,
`trained BATCH E P A ...`, `committed N`.
"""

from __future__ import annotations

import os
import random
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from store_helpers import create, issue_of, journal, payload, reopen

from headrace.store import Prepared, RunStore

SEGMENT_BYTES = 3000
Key = tuple[int, int, int]


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Busy:
    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        if RunStore.exists(path):
            self.store = reopen(path, segment_bytes=SEGMENT_BYTES)
        else:
            self.store = create(path, segment_bytes=SEGMENT_BYTES)
        restored = self.store.checkpoints.restore()
        self.branch, self.number = restored.branch, restored.number
        say("version", self.number)
        self.running: list[Key] = [row.key for row in restored.running]
        self.ready: list[Key] = [row.key for row in restored.ready]
        for key in self.running:
            self.store.ledger.reissue(key, start_version=self.number, deadline=self.number + 2)
            say("generate", *key)
        self.io = ThreadPoolExecutor(2)
        self.prepared: Future[Prepared] | None = None

    def run(self) -> None:
        while True:
            self.issue()
            self.finish()
            if self.random.random() < 0.2:
                self.drop()
            if len(self.ready) >= 3:
                self.train()
            self.checkpoint()

    def issue(self) -> None:
        epoch, position = self.store.ledger.frontier() or (0, -1)
        for _ in range(self.random.randint(1, 4)):
            epoch, position = (epoch + 1, 0) if position == 30 else (epoch, position + 1)
            self._issue((epoch, position, 0))

    def _issue(self, key: Key) -> None:
        self.store.ledger.issue(key, prompt_id="p", start_version=self.number, deadline=self.number + 2)
        self.running.append(key)
        say("generate", *key)

    def finish(self) -> None:
        done = self.random.sample(self.running, k=min(len(self.running), self.random.randint(0, 4)))
        offsets = []
        for key in done:
            offsets.append(journal(self.store, key, payload(key, self.random.randint(50, 900))))
            say("journalled", *key)
        self.io.submit(self.store.writer.sync).result()
        for key, offset in zip(done, offsets, strict=True):
            receipt = self.store.writer.receipt(key, offset, issue=issue_of(self.store, key))
            self.store.ledger.ready(receipt)
            say("ready", *key)
            self.running.remove(key)
            self.ready.append(key)

    def drop(self) -> None:
        if not self.ready:
            return
        key = self.ready.pop()
        self.store.ledger.drop(key, "filtered")
        say("dropped", *key)
        if self.random.random() < 0.5:
            self._issue((key[0], key[1], key[2] + 1))

    def train(self) -> None:
        batch, self.ready = self.ready[:3], self.ready[3:]
        with self.store.transaction():
            self.store.ledger.train(batch, batch=self.number)
            self.store.metrics.write(self.branch, self.number + 1, 0.0, {"groups": len(batch)})
        say("trained", self.number, *(part for key in batch for part in key))
        self.number += 1

    def checkpoint(self) -> None:
        if self.prepared is None and self.random.random() < 0.3:
            content = bytes([self.number % 256]) * 20_000

            def write(folder: Path) -> None:
                for name in ("a", "b", "c"):
                    (folder / name).write_bytes(content)

            self.prepared = self.io.submit(self.store.checkpoints.prepare, self.number, write)
        elif self.prepared is not None and self.prepared.done():
            prepared = self.prepared.result()
            self.store.checkpoints.commit(
                prepared, branch=self.branch, number=prepared.number, state={"number": prepared.number}
            )
            say("committed", prepared.number)
            self.prepared = None


if __name__ == "__main__":
    Busy(Path(sys.argv[1]), int(sys.argv[2])).run()
