"""Which addresses are this machine's alone."""

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
