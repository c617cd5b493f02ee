"""The fault matrix from the command line: `python -m headrace.controller.simulation --seed N`, or `--seeds N`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from headrace.controller.simulation.cases import RULES, case_of
from headrace.controller.simulation.verdict import repeat, table, took_effect, tried, without_effect, wrongs

_MOST_TOLD = 8
"""Of what is wrong with one seed."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m headrace.controller.simulation", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="one case, with what happened in it")
    which.add_argument("--seeds", type=int, help="so many cases, from --first on, and the table of what took effect")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--trace", action="store_true", help="every line of the trace (with --seed)")
    given = parser.parse_args(arguments)
    if given.seed is not None:
        return _one(given.seed, trace=given.trace)
    return _many(range(given.first, given.first + given.seeds))


def _one(seed: int, *, trace: bool) -> int:
    case = case_of(seed)
    print(case)
    print(case.faults)
    outcome = case.run(keeps_trace=trace)
    for line in outcome.trace:
        print(line)
    for life in outcome.lives:
        print(f"{life.begun_at:10.3f} s to {life.ended_at:10.3f} s: {life.end}")
    print("took effect:", ", ".join(f"{fault} {count}" for fault, count in sorted(took_effect(outcome).items())))
    print("hash:", outcome.trace_hash)
    found = wrongs(case, outcome)
    for wrong in found[:_MOST_TOLD]:
        print("WRONG:", wrong)
    return 1 if found else 0


def _many(seeds: range) -> int:
    rows: dict[str, Counter[str]] = {rule: Counter() for rule in RULES}
    failed = 0
    for seed in seeds:
        rule, took, found = tried(seed)
        rows[rule] += took
        failed += bool(found)
        if found:
            print(f"seed {seed}: {'; '.join(found[:_MOST_TOLD])}\n  repeat it: {repeat(seed)}", flush=True)
    print(table(rows))
    if never := without_effect(rows):
        print("never took effect:", ", ".join(never))
    print(f"{len(seeds)} cases, {failed} failed")
    return 1 if failed or never else 0


if __name__ == "__main__":
    sys.exit(main())
