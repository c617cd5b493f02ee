"""Where the Ray of a run has its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.config import ConfigError
from headrace.controller.building.ray_folder import PREFIX, ray_parent

_OF_RAY = "session_2026-11-28_00-31-59_123456_4194304/sockets/plasma_store"
"""The longest path in it: of a process whose number is the highest that Linux has."""


def test_it_is_a_temporary_one_unless_a_socket_s_path_would_be_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def parent(length: int) -> Path:
        monkeypatch.setattr("tempfile.tempdir", "/" + "t" * (length - 1))
        return ray_parent()

    assert parent(21) == Path("/" + "t" * 20)
    assert len(str(parent(21) / f"{PREFIX}{'x' * 8}" / _OF_RAY)) == 107
    assert parent(22) == parent(60) == Path("/tmp")


def test_where_tmp_cannot_be_written_the_length_is_refused_with_the_mend(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("headrace.runtime.socket_parent._SHORT", tmp_path / "none")
    monkeypatch.setattr("tempfile.tempdir", "/" + "ü" * 30)
    with pytest.raises(
        ConfigError, match=r"TMPDIR is /ü+, a path of 61 bytes, of which it may have 21 .*; set TMPDIR to a shorter"
    ):
        ray_parent()
    monkeypatch.setattr("tempfile.tempdir", "/short")
    assert ray_parent() == Path("/short")
