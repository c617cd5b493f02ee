"""Whether a cluster is there and lets this process in, asked before Ray joins it: Ray tries for 20 s, and tells of a
wrong token as of a cluster that does not answer."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from ray._common.usage.usage_constants import CLUSTER_METADATA_KEY
from ray._private import services
from ray._private.ray_constants import KV_NAMESPACE_CLUSTER
from ray._private.utils import check_version_info, compute_version_info
from ray._raylet import AuthenticationTokenLoader, GcsClient  # type: ignore[attr-defined]
from ray.exceptions import AuthenticationError, RayError

from headrace.errors import HeadraceError
from headrace.runtime.ray.environment import AUTH_MODE, AUTH_TOKEN, AUTH_TOKEN_PATH, BY_TOKEN

_REACH_S = 20.0
_LAST_PORT = 65535
_OWN_NODE = "auto"
"""The cluster that this machine is a node of, as a job's."""
_MEND = (
    f"set {AUTH_TOKEN} to the token that the cluster was started with, or {AUTH_TOKEN_PATH} to a file that has it "
    "(`ray get-auth-token` prints it there)"
)


class ClusterError(HeadraceError, ConnectionError):
    """No cluster is there, or it does not let this process in."""


class ClusterRefusal(ClusterError):
    """It has no room for the run, or its nodes lack something."""


class TokenError(ClusterError):
    """A cluster is there, and does not take the token of this process, or there is none."""


def require_admission(address: str) -> None:
    """Blocking, for a minute at most. Raises ClusterError, OSError and RayError: nobody answers, TokenError."""
    require_address(address)
    if (found := _found(address)) is None:
        raise ClusterError(
            f"runtime.address is {address}, and this machine is a node of no Ray cluster; write its head's HOST:PORT, "
            "or set RAY_ADDRESS to it"
        )
    socket.create_connection(host_and_port(found), timeout=_REACH_S).close()  # Ray would wait for minutes
    if _mode() == BY_TOKEN and _tokenless() is not None:  # Ray ends whoever asks without one
        raise token_error(f"the Ray cluster at {address}")
    try:
        _require_versions(f"the Ray cluster at {address}", GcsClient(address=found))
    except AuthenticationError as error:
        raise token_error(f"the Ray cluster at {address}") from error


def _found(address: str) -> str | None:
    """HOST:PORT, if there is any."""
    found: str | None = services.canonicalize_bootstrap_address(address) if address == _OWN_NODE else address
    return found


def _require_versions(whose: str, client: GcsClient) -> None:
    """Those that Ray requires of whoever joins. Raises ClusterError."""
    kept: bytes | None = client.internal_kv_get(CLUSTER_METADATA_KEY, namespace=KV_NAMESPACE_CLUSTER)
    if kept is None:
        return
    metadata = json.loads(kept)
    try:
        check_version_info(metadata, "here")
    except RuntimeError as error:
        ray, python = compute_version_info()
        raise ClusterError(
            f"{whose} has Ray {metadata['ray_version']} and Python {metadata['python_version']}, and the command Ray "
            f"{ray} and Python {python}; install the cluster's here, or have it run the command (headrace submit)"
        ) from error


def require_node(address: str) -> None:
    """Ray lets in who is on one of its nodes, and says of others that it found none. Blocking. Raises ClusterError;
    nothing where it cannot be told."""
    try:
        there = GcsClient(address=_found(address)).get_all_node_info(timeout=_REACH_S)
    except (RayError, OSError, ValueError):
        return
    if not {each.hex() for each in there} & services.find_node_ids():
        raise ClusterError(
            f"this machine is no node of the Ray cluster at {address}, and a run can only be begun on one: run the "
            f"command on a node, make this machine one (`ray start --address={address}`), or hand the run to the "
            "cluster (`headrace submit`)"
        )


def require_same_cluster(address: str, own: str) -> None:
    """That `address` is of the cluster at `own`, in which this process is already: it can be in no other. Blocking.
    Raises ClusterError."""
    if address == _OWN_NODE:
        return
    require_address(address)
    try:
        is_same = bool(_reached(address) & _reached(own))
    except OSError:  # no such host
        is_same = False
    if not is_same:
        raise ClusterError(
            f"runtime.address is {address}, and this process is in the Ray cluster at {own} already; leave "
            "runtime.address out, or call ray.shutdown() first"
        )


def _reached(address: str) -> set[tuple[str, int]]:
    """What an address of a head comes to; this machine is known by its own address too. Raises OSError."""
    host, port = host_and_port(address)
    found = {str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    return {(each, port) for each in found | {services.resolve_ip_for_localhost(each) for each in found}}


def token_error(whose: str) -> TokenError:
    """Of `whose` answer to what this process sends, or could not send."""
    if (mode := _mode()) != BY_TOKEN:
        return TokenError(
            f"{whose} wants a token, and {AUTH_MODE} is {mode}, so that none is sent; set it to {BY_TOKEN}"
        )
    if (why := _tokenless()) is not None:
        return TokenError(f"{whose} wants a token, and {why}; {_MEND}")
    return TokenError(f"{whose} does not take the token that is sent to it, from {_source()}; {_MEND}")


def _mode() -> str:
    return os.environ.get(AUTH_MODE, BY_TOKEN).lower()


def _tokenless() -> str | None:
    """Why there is none to send."""
    try:
        is_there = AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True)
    except AuthenticationError:
        return f"the file that {AUTH_TOKEN_PATH} names, {os.environ.get(AUTH_TOKEN_PATH)}, has none, or cannot be read"
    return None if is_there else f"there is none: {AUTH_TOKEN} and {AUTH_TOKEN_PATH} are not set"


def _source() -> str:
    """Where the token is that Ray sends: in the order in which Ray itself looks for one."""
    if os.environ.get(AUTH_TOKEN):
        return AUTH_TOKEN
    if path := os.environ.get(AUTH_TOKEN_PATH):
        return f"{path} ({AUTH_TOKEN_PATH})"
    return f"{Path.home()}/.ray/auth_token"


def require_address(address: str) -> None:
    """Raises ClusterError for what is no HOST:PORT, where Ray itself would wait, or look for one."""
    if address == _OWN_NODE:
        return
    try:
        host_and_port(address)
    except ValueError:
        raise ClusterError(
            f"runtime.address is {address}; write HOST:PORT, the address of the cluster's head, as 127.0.0.1:6379 "
            "(`ray start --head` prints it)"
        ) from None


def host_and_port(address: str) -> tuple[str, int]:
    """Of HOST:PORT, or [HOST]:PORT. Raises ValueError for what is neither."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) <= _LAST_PORT:
        raise ValueError(f"{address!r} is no HOST:PORT")
    return host.strip("[]"), int(port)
