"""The watchdog of a run's event loop, which workflows, environments and filters of the user's run in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from headrace.config.values.name_or_function import is_own
from headrace.controller.planning.given_inputs import texts_of
from headrace.controller.planning.plan import Plan
from headrace.plugins.named import file_of
from headrace.runtime.watchdogs.watchdog import LoopWatchdog


def watchdog(plan: Plan, owners: Mapping[str, str] = MappingProxyType({}), record: Path | None = None) -> LoopWatchdog:
    """`owners`: what each file of the caller's is, beside what the config names. `record`: the run's database, if there
    is a run."""
    places = texts_of(plan.config.model_dump(mode="json", by_alias=True))
    found: dict[str, list[str]] = {}
    for key, spec in places:
        # Rewards are scored elsewhere, and a script may define one beside what runs here.
        if is_own(spec) and not key.startswith("reward.") and (file := file_of(spec, plan.given)):
            found.setdefault(file, []).append(key)
    for file, owner in owners.items():
        found.setdefault(file, []).append(owner)
    named = {file: " or ".join(dict.fromkeys(keys)) for file, keys in found.items()}
    return LoopWatchdog(owners=named, ends_after_s=plan.config.runtime.stall_timeout_s, record=record)
