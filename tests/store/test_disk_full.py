"""A disk that is really full: one clear error, nothing broken, and the run goes on once there is space."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from store_helpers import create

from headrace.store import DiskFull, Journal, JournalWriter

HERE = Path(__file__).parents[1] / "helpers"
FULL_DISK = """
set -e
mount -t tmpfs -o size=1m tmpfs "$1"
cp -r "$2" "$1/run"
head -c 300000 /dev/zero > "$1/ballast"
exec "$3" store_full_child.py "$1/run" "$4"
"""


def may_mount() -> bool:
    """Whether this machine lets us mount a disk of our own, as root of a private namespace."""
    probe = ["unshare", "--mount", "--map-root-user", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(probe, capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


@pytest.mark.skipif(not may_mount(), reason="mounting a small disk needs user namespaces")
@pytest.mark.parametrize("way", ["journal", "ledger", "events", "checkpoint", "open"])
def test_a_full_disk(tmp_path: Path, way: str) -> None:
    create(tmp_path / "run").close()
    (tmp_path / "disk").mkdir()
    shell = ["sh", "-c", FULL_DISK, "sh", str(tmp_path / "disk"), str(tmp_path / "run"), sys.executable, way]
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", *shell], cwd=HERE, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file of this process may grow past `size` bytes: writes then fail on any machine as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_append_that_does_not_fit_is_undone(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path)
    with files_up_to(50_000):
        first = journal.append((0, 0, 0), b"a" * 20_000)
        end = journal.end
        with pytest.raises(DiskFull, match=r"000001\.journal: free space on its disk"):
            journal.append((0, 1, 0), b"b" * 40_000)
        assert journal.end == end
        assert (tmp_path / "000001.journal").stat().st_size == end[1]
        last = journal.append((0, 2, 0), b"c" * 20_000)
        journal.sync()
    assert tuple(map(Journal(tmp_path).read, (first, last))) == (b"a" * 20_000, b"c" * 20_000)
    journal.close()
    assert [receipt.key for receipt in Journal(tmp_path).recover({})] == [(0, 0, 0), (0, 2, 0)]


def test_a_checkpoint_that_does_not_fit_is_gone(tmp_path: Path) -> None:
    store = create(tmp_path / "run")

    def write(folder: Path) -> None:
        (folder / "weights.bin").write_bytes(b"w" * 60_000)

    with files_up_to(50_000), pytest.raises(DiskFull, match="step_1"):
        store.checkpoints.prepare(1, write)
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []
    store.close()


def test_a_native_writer_that_wraps_the_error(tmp_path: Path) -> None:
    """safetensors raises its own error type with the system's words."""
    store = create(tmp_path / "run")

    def write(folder: Path) -> None:
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    with pytest.raises(DiskFull, match="step_1"):
        store.checkpoints.prepare(1, write)
    store.close()
