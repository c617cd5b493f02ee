from __future__ import annotations

import os

import psutil
import pytest

from headrace.weights.addresses import GLOO, LOOPBACK, NCCL, interface_of, own_address, speaking_from


def test_who_is_asked_on_loopback_speaks_from_there() -> None:
    assert own_address(LOOPBACK) == LOOPBACK
    assert own_address("localhost") == LOOPBACK


def test_the_interface_of_an_address_is_the_one_that_has_it() -> None:
    name = interface_of(LOOPBACK)
    assert LOOPBACK in [each.address for each in psutil.net_if_addrs()[name]]
    with pytest.raises(OSError, match=r"no network interface of this machine has the address 192\.0\.2\.1$"):
        interface_of("192.0.2.1")


@pytest.mark.parametrize("fails", [False, True])
def test_an_interface_is_chosen_for_a_while_and_never_against_the_users_choice(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(GLOO, raising=False)
    monkeypatch.setenv(NCCL, "theirs0")
    before = dict(os.environ)
    try:
        with speaking_from(LOOPBACK, GLOO, NCCL):
            assert (os.environ[GLOO], os.environ[NCCL]) == (interface_of(LOOPBACK), "theirs0")
            if fails:
                raise RuntimeError("a rank did not come")
    except RuntimeError:
        assert fails
    assert dict(os.environ) == before
    with speaking_from(LOOPBACK, NCCL):
        assert GLOO not in os.environ
