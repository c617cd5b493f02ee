"""What Ray reads from the environment, before it is imported."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest

from headrace.runtime.ray.environment import RayImported, prepare


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.delitem(sys.modules, "ray", raising=False)


def test_a_ray_of_the_run_s_own_has_a_token_of_its_own_and_is_on_loopback() -> None:
    prepare(None)
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"


def test_what_a_shell_was_left_with_opens_it_to_nobody() -> None:
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"}
    prepare("10.0.0.7:6379")  # which may be such a one
    assert os.environ["RAY_AUTH_MODE"] == "disabled"
    prepare(None)
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
    assert os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"


def test_the_token_of_one_that_is_joined_is_the_user_s() -> None:
    prepare("10.0.0.7:6379")
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert not {"RAY_AUTH_TOKEN", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"} & os.environ.keys()


def test_one_that_was_imported_too_early_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with pytest.raises(RayImported, match="set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN in the environment"):
        prepare(None)
    os.environ["RAY_AUTH_MODE"] = "disabled"
    with pytest.raises(RayImported, match="set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN in the environment"):
        prepare(None)
    prepare("10.0.0.7:6379")
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    prepare(None)
    assert os.environ["RAY_AUTH_MODE"] == "disabled", "it is in one already, as that is"
