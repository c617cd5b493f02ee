"""Who finds this machine by an address."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """A name is not, but for `localhost`: what others lead to is somebody else's to say."""
    if host == "localhost":
        return True
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def listener(host: str) -> str:
    """One word for all by which one address is written: of loopback, for `localhost`, 127.0.0.1 and ::1, at which a
    server that listens there is found; others of 127.0.0.0/8 may be other servers."""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return "localhost" if str(mapped or found) in ("127.0.0.1", "::1") else str(mapped or found)


def one_host(host: str) -> str:
    """`host`, by which others are to find this machine. Raises ValueError for what is every address of one."""
    if host in ("0.0.0.0", "::"):
        raise ValueError(f"host is {host!r}, where nobody finds this machine; give one address that the others reach")
    return host
