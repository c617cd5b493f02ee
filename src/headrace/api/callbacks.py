"""Functions of the caller's that hear what a run records."""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.config.errors import ConfigError
from headrace.observe.listeners import Listeners
from headrace.observe.offline.listeners import OfflineListeners
from headrace.plugins.raised import describe_exception
from headrace.store.rollouts import Rollout

logger = logging.getLogger(__name__)

OFFLINE = ("on_batch", "on_evaluation", "on_checkpoint")
"""Of the offline trainers, which draw no rollouts."""
NAMES = (*OFFLINE, "on_rollout")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    version: int
    """Of an offline trainer: steps that are done."""
    path: Path

    @property
    def model(self) -> Path:
        """Folder that `transformers` loads."""
        return self.path / "model"


class Callbacks:
    """The callbacks of one run. One that raises costs a warning: the first time, and how often in the end."""

    def __init__(self, given: Iterable[Any], names: Sequence[str] = NAMES) -> None:
        """`names`: methods that there are moments for. Raises ConfigError for one that could never be called."""
        self._called: dict[str, list[Callable[[Any], object]]] = {name: [] for name in names}
        self._raised = Counter[str]()
        if not isinstance(given, Iterable):
            raise ConfigError(f"callbacks is a {type(given).__name__}; give a list of them")
        for one in given:
            self._add(one)

    @property
    def files(self) -> dict[str, str]:
        """What each file that a callback is defined in is, for the watchdog."""
        functions = [function for functions in self._called.values() for function in functions]
        codes = [getattr(inspect.unwrap(function), "__code__", None) for function in functions]
        return {code.co_filename: "callbacks" for code in codes if code is not None}

    def listeners(self) -> Listeners:
        return Listeners(
            batch=lambda batch: self._call("on_batch", batch),
            evaluation=lambda evaluation: self._call("on_evaluation", evaluation),
            checkpoint=lambda number, folder: self._call("on_checkpoint", Checkpoint(number, folder)),
            rollouts=self._tell_rollouts,
        )

    def offline_listeners(self) -> OfflineListeners:
        return OfflineListeners(
            step=lambda step: self._call("on_batch", step),
            evaluation=lambda found: self._call("on_evaluation", found),
            checkpoint=lambda number, folder: self._call("on_checkpoint", Checkpoint(number, folder)),
        )

    def close(self) -> None:
        for what, count in self._raised.items():
            if count > 1:
                logger.warning("callback %s raised %s times in all", what, f"{count:,}")

    def _add(self, one: Any) -> None:
        found = [name for name in self._called if callable(getattr(one, name, None))]
        if not found:
            raise ConfigError(
                f"callbacks: a {type(one).__name__} has none of {', '.join(self._called)}; give an object with at "
                "least one"
            )
        if isinstance(one, type):
            raise ConfigError(f"callbacks: {one.__name__} is a class; give an object of it, {one.__name__}()")
        for name in found:
            function = getattr(one, name)
            where = f"callbacks: {type(one).__name__}.{name}"
            if inspect.iscoroutinefunction(function):
                raise ConfigError(f"{where} is async, and is called without waiting; write a plain def")
            try:
                inspect.signature(function).bind(None)
            except TypeError as error:
                raise ConfigError(f"{where} is called with one argument, but {error}; change its parameters") from error
            except ValueError:  # callables of C code may have no signature
                pass
            self._called[name].append(function)

    def _tell_rollouts(self, rollouts: Sequence[Rollout]) -> None:
        if self._called["on_rollout"]:
            from headrace.viewer.rollout_text import as_json

            for rollout in rollouts:
                self._call("on_rollout", as_json(rollout))

    def _call(self, name: str, value: Any) -> None:
        for function in self._called[name]:
            try:
                function(value)
            except Exception as error:
                what = getattr(function, "__qualname__", name)
                self._raised[what] += 1
                if self._raised[what] == 1:
                    logger.warning("callback %s raised %s; the run goes on", what, describe_exception(error))
