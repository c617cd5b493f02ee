"""What was measured of this machine, once, for all who ask.

It is kept for each processor and version of torch, in a file of the user's cache folder, so that all processes with one
such folder, on processors of one kind, compute alike, to the bit.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

Measure = Callable[[], Mapping[str, float]]


def kept_measurement(folder: Path | None, name: str, fields: Sequence[str], measure: Measure) -> list[float] | None:
    """The `fields` of what is kept in `folder` under `name`, or else is measured and kept there: who comes first
    decides for all. None for no folder, or one that cannot be written: each process would find something else."""
    if folder is None:
        return None
    path = folder / f"{name}-{_machine()}.json"
    for _ in range(2):
        try:
            found = json.loads(path.read_text())
            return [float(found[field]) for field in fields]
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError):
            with suppress(OSError):
                path.unlink()
        try:
            _keep(path, measure())
        except OSError:
            return None
    return None


def cache_folder() -> Path | None:
    """The user's, of this package."""
    given = os.environ.get("XDG_CACHE_HOME")
    with suppress(RuntimeError):  # whoever has no home
        return (Path(given) if given else Path.home() / ".cache") / "headrace"
    return None


@contextmanager
def one_thread() -> Iterator[None]:
    """Measure by one thread and its own time, which a busy machine leaves alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _keep(path: Path, found: Mapping[str, float]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".json") as file:
        json.dump({**found, "processor": _processor()[0], "torch": torch.__version__}, file)
        file.flush()
        with suppress(FileExistsError):
            os.link(file.name, path)


def _machine() -> str:
    """Of processor and torch: 16 hexadecimal digits."""
    said = "\n".join((*_processor(), torch.__version__))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def _processor() -> tuple[str, str]:
    """Its name, and what it can do."""
    names = ("model name", "flags")
    found = dict.fromkeys(names, "")
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines():
            name, _, value = line.partition(":")
            if name.strip() in names:
                found[name.strip()] = value.strip()
    return found["model name"] or platform.processor() or platform.machine(), found["flags"]
