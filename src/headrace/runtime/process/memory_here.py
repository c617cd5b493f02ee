"""A folder in memory for a worker that may be on another machine than the controller, which told it of one."""

from __future__ import annotations

from pathlib import Path

from headrace.runtime.process.site import Site


class MemoryHere:
    """`folder`: the one that was told, where that is seen from here, and goes with the run. Elsewhere one of this
    machine's memory, which goes with the process, however that ends."""

    def __init__(self, told: str) -> None:
        """Raises OSError."""
        self.folder = Path(told)
        self._site: Site | None = None
        if not self.folder.is_dir():
            self._site = Site(told, apart=True)
            self.folder = self._site.folder / "weights"
            self.folder.mkdir(mode=0o700)
