"""Imports that take seconds, made while something else is waited for."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module


@contextmanager
def imported_beside(modules: Sequence[str]) -> Generator[None]:
    """By a thread, while this is entered: they have been imported once it is left. An error inside is raised at once,
    without waiting for them. A module that cannot be imported tells whoever imports it next."""

    def load() -> None:
        for module in modules:
            with suppress(Exception):
                import_module(module)

    thread = threading.Thread(target=load, name="imports")
    thread.start()
    yield
    thread.join()
