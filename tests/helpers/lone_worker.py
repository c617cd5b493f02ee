"""The only worker of its kind, which is lost whenever a test says so."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.runtime.signal import Signal
from headrace.runtime.workers import Handle, WorkerLost


@dataclass
class LoneWorker:
    handles: tuple[Handle, ...] = (Handle("reference/0", 0, ""),)
    lost: dict[int, str] = field(default_factory=dict)
    changed: Signal = field(default_factory=Signal)

    async def restart(self) -> None:
        self.lost.clear()
        self.changed.notify()

    def lose(self) -> WorkerLost:
        self.lost[0] = "exit code 3"
        self.changed.notify()
        return WorkerLost(0, "exit code 3", worker="reference/0")
