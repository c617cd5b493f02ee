"""Whether an engine serves: from its start on, until it is stopped or dies."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.engines.protocol import EngineError


@dataclass(slots=True)
class Liveness:
    started: bool = False
    stopping: bool = False
    failure: Exception | None = None
    """Why it died."""

    @property
    def is_dead(self) -> bool:
        return self.failure is not None

    @property
    def has_ended(self) -> bool:
        """It died, or is being stopped."""
        return self.is_dead or self.stopping

    @property
    def serves(self) -> bool:
        return self.started and not self.has_ended

    def die(self, error: Exception) -> None:
        """Of `error`, which lets go of the frames that it was raised in: their variables are the engine's memory, and
        it is told as long as the engine is there."""
        waiting: list[BaseException | None] = [error]
        met: set[int] = set()
        while waiting:
            each = waiting.pop()
            if each is not None and id(each) not in met:
                met.add(id(each))
                each.__traceback__ = None
                waiting += [each.__cause__, each.__context__]
        self.failure = error

    def check_alive(self) -> None:
        """Raises EngineError if it died."""
        if self.failure is not None:
            raise EngineError(f"the engine died: {self.failure}") from self.failure

    def check(self) -> None:
        """Raises EngineError unless it serves."""
        self.check_alive()
        if not self.serves:
            raise EngineError("the engine is not running: start it first, and ask nothing of it after stop")
