from __future__ import annotations

import psutil
import pytest

from headrace.weights.addresses import LOOPBACK, interface_of, own_address


def test_who_is_asked_on_loopback_speaks_from_there() -> None:
    assert own_address(LOOPBACK) == LOOPBACK
    assert own_address("localhost") == LOOPBACK


def test_the_interface_of_an_address_is_the_one_that_has_it() -> None:
    name = interface_of(LOOPBACK)
    assert LOOPBACK in [each.address for each in psutil.net_if_addrs()[name]]
    with pytest.raises(OSError, match=r"no network interface of this machine has the address 192\.0\.2\.1$"):
        interface_of("192.0.2.1")
