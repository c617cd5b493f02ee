"""How many sessions one rollout worker holds at once: its memory, and the time that their end takes.

    python -m benchmarks.gateway_sessions [--sessions 2000]

All sessions are open at once, each with a connection of its own that stays, and play 16 turns with a tool, of some
4,000 tokens at their end, through HTTP: a turn of each before the next turn of any, 32 requests at a time. The client
is a process of its own; the engine answers at once. Memory is this process's resident set: `before` with all modules
and the tokenizer, `held` when the last answer is out. `end_s`: until all workflows have returned their trajectories.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

import psutil

from benchmarks.gateway_stub import DEADLINE_S, Lengths, client_process, gateway_of, stub_engine, tokenizer
from benchmarks.machine import save
from headrace.runtime.collection import rare_collections
from headrace.runtime.process.identity import open_many_files

LENGTHS = Lengths(first=512, answer=96, result=96, turns=16)
AT_ONCE = 32


def resident_mib() -> float:
    return float(psutil.Process().memory_info().rss) / 2**20


async def measure(sessions: int) -> dict[str, Any]:
    """Raises RuntimeError if a session was not recorded as one history of all its turns."""
    text = tokenizer()
    engine = stub_engine(text, LENGTHS, 0.0)
    before, began = resident_mib(), time.perf_counter()
    async with gateway_of(engine, text) as episodes:
        told = {"loop": "closed", "sessions": sessions, "stagger": False, "seed": 0, "at_once": AT_ONCE}
        async with client_process(LENGTHS, **told) as client:
            episodes.client = client
            playing = [asyncio.create_task(episodes.play()) for _ in range(sessions)]
            by_turn = []
            for _ in range(LENGTHS.turns):
                await asyncio.wait_for(client.heard(), DEADLINE_S)
                by_turn.append(resident_mib())
                print(len(by_turn), round(by_turn[-1]), "MiB", round(time.perf_counter() - began, 1), "s", flush=True)
            played, ended = time.perf_counter() - began, time.perf_counter()
            for future in client.ended.values():
                future.set_result(None)
            histories = await asyncio.wait_for(asyncio.gather(*playing), DEADLINE_S)
            end_s = time.perf_counter() - ended
            whole = resident_mib()
    if any(len(each) != 1 or each[0].metadata["turns"] != LENGTHS.turns for each in histories):
        raise RuntimeError(f"a session was not recorded as one history of {LENGTHS.turns} turns")
    tokens = [each[0].length for each in histories]
    return {
        "sessions": sessions,
        "turns": LENGTHS.turns,
        "tokens": sum(tokens) / len(tokens),
        "before_mib": before,
        "held_mib": by_turn[-1],
        "beyond_mib": by_turn[-1] - before,
        "by_turn_mib": by_turn,
        "ended_mib": whole,
        "played_s": played,
        "end_s": end_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=2000)
    sessions = parser.parse_args().sessions
    open_many_files()
    with rare_collections():
        found = asyncio.run(measure(sessions))
    print(json.dumps(found))
    save("gateway_sessions", found)


if __name__ == "__main__":
    main()
