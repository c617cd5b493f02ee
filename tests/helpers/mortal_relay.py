"""A relay that ends, or stands still, at a bucket of its own choice."""

from __future__ import annotations

import os
import signal
from typing import ClassVar

from headrace.roles.workers.relay import RelaySpec, RelayWorker
from headrace.runtime.workers import Host
from headrace.weights.relay import chain


class MortalRelay(RelayWorker):
    kind: ClassVar[str] = "relay"

    def __init__(self, spec: RelaySpec, host: Host) -> None:
        super().__init__(spec, host)
        self._left = -1
        mark = chain.mark

        def marked(unit: str) -> None:
            if self._left == 0:
                os.kill(os.getpid(), self._signal)
            self._left -= 1
            mark(unit)

        chain.mark = marked

    def die_at(self, bucket: int, by: int = signal.SIGKILL) -> None:
        """Of the next version, from 0; behind the last it is the verdict."""
        self._left, self._signal = bucket, by
