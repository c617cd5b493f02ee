"""The figures of docs/agents.md are those that the benchmarks wrote, beside their aims."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
AIMS_MS = {"p50": 3.0, "p99": 15.0}
COUNTED = {3: "three", 5: "five"}

Figures = Mapping[str, Any]


def figures(name: str) -> Figures:
    found: Figures = json.loads((ROOT / "benchmarks/results" / f"{name}.json").read_text())
    return found


def row(beginning: str) -> tuple[str, str]:
    """What was measured, and what came of it: of the one row of the page's table that begins so."""
    lines = (ROOT / "docs/agents.md").read_text().splitlines()
    (written,) = (line for line in lines if line.startswith(f"| {beginning}"))
    _, what, found, _ = (cell.strip() for cell in written.split("|"))
    return what, found


def spread(found: Figures, places: int | None = None) -> str:
    """With so many decimals, and as ms, where that is given."""
    middle, least, most = (f"{found[name]:.{places or 2}f}" for name in ("median", "min", "max"))
    return f"{middle}{'' if places is None else ' ms'} ({least} to {most})"


def test_sessions_held_at_once() -> None:
    found = figures("gateway_sessions")
    what, told = row(f"{found['sessions']:,} sessions open at once")
    assert f"{found['turns']} turns of {found['tokens']:,.0f} tokens each" in what
    assert told == f"{found['held_mib']:.0f} MiB, of which {found['before_mib']:.0f} MiB before the first"


def test_what_the_gateway_adds() -> None:
    intel, amd = figures("gateway_latency"), figures("gateway_latency_amd")
    what, told = row(f"what the gateway adds to an engine that answers after {intel['engine_ms']:.0f} ms")
    for found in (intel, amd):
        assert f": {found['rate']:.0f} requests a second" in what
        lengths = [run["prompt_tokens"] for run in found["rows"]]
        assert f"prompts of {round(sum(lengths) / len(lengths), -1):,.0f} tokens" in what
    assert "the aims are {p50:.0f} and {p99:.0f} ms".format(**AIMS_MS) in what
    half, most = (amd["last_byte_ms"][name] for name in AIMS_MS)
    assert told.startswith(
        f"on an AMD EPYC, of {COUNTED[amd['runs']]} runs, {spread(half, 2)} and {spread(most, 1)}: both are met in each"
    )
    assert all(run["last_byte_ms"][name] <= aim for run in amd["rows"] for name, aim in AIMS_MS.items())
    assert f"from {amd['cpu_ms']['min']:.1f} to {amd['cpu_ms']['max']:.1f} ms" in told
    middle, slow = (intel["last_byte_ms"][name]["median"] for name in AIMS_MS)
    assert f"On the Intel Xeon, of {COUNTED[intel['runs']]} runs, {middle:.2f} ms and {slow:.1f} ms" in told


def test_async_over_sync_with_slow_tools() -> None:
    found = figures("tools")
    tool, (default, most) = found["tool_s"], found["rows"].values()
    what, told = row(f"tools of {tool['from']:g} to {tool['to']:g} s (log-normal, median {tool['median']:g} s)")
    assert f"{COUNTED[found['turns'] - 1]} calls an episode" in what
    assert f"η = {found['eta']}, B = {found['prompts_per_batch']}, {found['samples_per_prompt']} episodes" in what
    assert f"async over sync, {found['runs']} runs" in what
    with_most = f"with `async.ahead` at its most, {most['ahead']} groups"
    assert told == f"{spread(default['over_sync'])}; {with_most}, {spread(most['over_sync'])}"
    _, bounds = row("the same, if tokens and training took no time")
    assert bounds == f"{default['bound']:.1f}; {most['bound']:.1f}"
