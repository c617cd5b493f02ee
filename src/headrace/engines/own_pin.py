"""A version that is held by an engine of its own."""

from __future__ import annotations

from collections.abc import Callable

from headrace.weights.version import Version


class Pin:
    """See `PinnedVersion`."""

    is_lost = False

    def __init__(self, version: Version, release: Callable[[], None]) -> None:
        """`release` is called once."""
        self.version = version
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()
