"""What crosses between who makes versions and who takes them."""

from __future__ import annotations

from headrace.runtime.wire.wire_types import WireTypes
from headrace.weights.plane import Manifest, TensorEntry, WeightOffer
from headrace.weights.seen import Seen
from headrace.weights.swap_check import SwapCheck
from headrace.weights.version import Version

WEIGHT_TYPES = WireTypes(
    {
        "manifest": Manifest,
        "seen": Seen,
        "swap_check": SwapCheck,
        "tensor_entry": TensorEntry,
        "version": Version,
        "weight_offer": WeightOffer,
    }
)
