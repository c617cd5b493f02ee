"""Which users root's samples run as."""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

import pytest

from headrace.sandbox.limits import NOBODY
from headrace.sandbox.users import own_users

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no names that end with a process")


@pytest.fixture(autouse=True)
def by_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(Path, "read_text", lambda path: "0 1000 1\n61000 100000 3\n")


def test_each_place_has_its_own_and_so_has_each_run() -> None:
    with own_users(2) as some, own_users(2) as others:
        assert (some, others) == ([61_002, 61_001], [61_000, NOBODY])
    with own_users(3) as later:
        assert later == [61_002, 61_001, 61_000], "they are free again"


def test_a_user_who_exists_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def known(number: int) -> object:
        if number == 61_002:
            return "somebody"
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", known)
    with own_users(1) as found:
        assert found == [61_001]


def test_without_root_there_is_nothing_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with own_users(2) as found:
        assert found == [NOBODY, NOBODY]
