"""What the gateway adds to the time of a request, over an engine that answers after 50 ms.

    python -m benchmarks.gateway_latency [--runs 5] [--seconds 60] [--rate 100] [--profile FILE]

Streamed chats in an open loop: Poisson arrivals that wait for no answer, each the next turn of one of 256 sessions that
are open at once; a session of 8 turns with a tool is followed by a new one. Prompts have about 1,000 tokens on average.
The client is a process of its own. A latency is from when the request was due to the first and the last byte of the
body; told is what is beyond the 50 ms. `engine_late`: how much later than 50 ms the engine itself woke, which is in it;
`sent_late`: how late the client was. `cpu_ms`: this process's processor time a request, beginning and end of sessions
included. Gateway, engine and workflow are in this process, as in a rollout worker.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.gateway_stub import DEADLINE_S, Episodes, Lengths, client_process, gateway_of, stub_engine, tokenizer
from benchmarks.machine import save, spread
from headrace.experience.text.fast_tokenizer import FastTokenizer
from headrace.runtime.collection import rare_collections

DELAY_S, SESSIONS, WARM_S = 0.05, 256, 5.0
LENGTHS = Lengths(first=780, answer=32, result=32, turns=8)


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """In ms."""
    every = sorted(1e3 * each for each in seconds)
    return {"p50": statistics.median(every), "p99": every[int(0.99 * len(every))], "max": every[-1]}


async def measure(text: FastTokenizer, rate: float, seconds: float, seed: int) -> dict[str, Any]:
    """One run. Raises RuntimeError if an episode was not recorded as one history of all its turns."""
    engine = stub_engine(text, LENGTHS, DELAY_S)
    async with gateway_of(engine, text) as episodes:
        settings = {"seed": seed, "rate": rate, "warm_s": WARM_S, "seconds": seconds}
        async with client_process(LENGTHS, loop="open", sessions=SESSIONS, stagger=True, **settings) as client:
            episodes.client = client
            playing = [asyncio.create_task(_one_after_another(episodes, place)) for place in range(SESSIONS)]
            heard = asyncio.create_task(client.heard())
            both: list[asyncio.Task[Any]] = [heard, *playing]
            computed = time.process_time()
            try:
                await asyncio.wait(both, timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
                for each in playing:
                    if each.done():
                        each.result()
                if not heard.done():
                    raise RuntimeError(f"the client did not end within {DEADLINE_S:.0f} s")
                times, computed = heard.result(), time.process_time() - computed
            finally:
                for task in both:
                    task.cancel()
                await asyncio.gather(*both, return_exceptions=True)
    last = [each - DELAY_S for each in times["last"]]
    return {
        "requests": len(last),
        "cpu_ms": 1e3 * computed / len(engine.prompt_tokens),
        "prompt_tokens": statistics.mean(engine.prompt_tokens),
        "last_byte_ms": percentiles(last),
        "first_byte_ms": percentiles([each - DELAY_S for each in times["first"]]),
        "engine_late_ms": percentiles(engine.late_s),
        "sent_late_ms": percentiles(times["sent"]),
    }


async def _one_after_another(episodes: Episodes, place: int) -> NoReturn:
    turns = 1 + place % LENGTHS.turns
    while True:
        (history,) = await episodes.play()
        if history.metadata["turns"] != turns:
            raise RuntimeError(f"an episode of {turns} turns was recorded with {history.metadata['turns']}")
        turns = LENGTHS.turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second")
    parser.add_argument("--profile", type=Path, help="of this process, for pstats; the times are then no figures")
    given = parser.parse_args()
    text, runs = tokenizer(), []
    with rare_collections(), (profile := cProfile.Profile()) if given.profile else nullcontext():
        for seed in range(given.runs):
            runs.append(asyncio.run(measure(text, given.rate, given.seconds, seed)))
            print(runs[-1], flush=True)
    if given.profile:
        profile.dump_stats(given.profile)
        return
    found: dict[str, Any] = {
        name: {each: spread([run[name][each] for run in runs]) for each in ("p50", "p99", "max")}
        for name in ("last_byte_ms", "first_byte_ms", "engine_late_ms", "sent_late_ms")
    }
    found["cpu_ms"] = spread([run["cpu_ms"] for run in runs])
    told = {"rate": given.rate, "seconds": given.seconds, "runs": given.runs, "engine_ms": 1e3 * DELAY_S}
    save("gateway_latency", {**told, **found, "rows": runs})


if __name__ == "__main__":
    main()
