"""What the groups of a rank leave in its process."""

from __future__ import annotations

import os

import pytest
import torch

from headrace.training.layouts.group import RankGroup
from headrace.training.layouts.ranks import Layout
from headrace.training.replicas import Meeting
from headrace.weights.addresses import GLOO, NCCL

pytestmark = pytest.mark.cpu


def _alone() -> RankGroup:
    return RankGroup(Layout(zero=3), 0, Meeting(10.0), 10.0, torch.device("cpu"))


def test_the_environment_is_as_it_was_once_groups_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is started later may meet others on another network."""
    for name in (GLOO, NCCL):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    ranks = _alone()
    try:
        assert dict(os.environ) == before
        assert ranks.total(2.0) == 2.0
    finally:
        ranks.close()


def test_groups_speak_by_the_interface_that_the_user_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GLOO, "none0")
    with pytest.raises(RuntimeError, match="none0"):
        _alone()
    assert os.environ[GLOO] == "none0"
