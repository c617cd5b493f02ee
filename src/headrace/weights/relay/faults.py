"""What of relays fails, as the controller hears of it, and what it says of NCCL: pure."""

from __future__ import annotations

from collections.abc import Collection

from headrace.runtime.protocol import WaitTimeout
from headrace.runtime.workers import WorkerError, WorkerLost
from headrace.weights.plane import WeightError
from headrace.weights.relay.line import NcclError, PeerError

Fault = Exception
"""WorkerError, WorkerLost or WaitTimeout."""


def is_of_peer(fault: Fault) -> bool:
    """A relay told only that another one, or NCCL between them, could not be used: that is perhaps not its own."""
    return _is(fault, PeerError) or _is(fault, NcclError)


def refusal(faults: Collection[Fault]) -> Fault | None:
    """That of NCCL, by a group that did not come together, if it was one. Who fails leaves, so that another may hear of
    no more than a lost connection; and where one has died, or was silent, the others may take that for NCCL's fault."""
    if any(map(_is_gone, faults)):
        return None
    return next((fault for fault in faults if _is(fault, NcclError)), None)


def may_be_nccl(faults: Collection[Fault]) -> bool:
    """Whether a journey may have failed by NCCL, which can also end a process, or have it stand still. Not if anybody
    told of a fault of another kind, as a damaged version: it left for that, which the others noticed."""
    return all(_is_gone(fault) or is_of_peer(fault) for fault in faults)


def _is_gone(fault: Fault) -> bool:
    return isinstance(fault, WorkerLost | WaitTimeout)


def _is(fault: Fault, kind: type[WeightError]) -> bool:
    return isinstance(fault, WorkerError) and fault.type == kind.__name__
