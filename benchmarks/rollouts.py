"""How long `headrace rollouts` takes on a large record, and how long its page takes to open.

    python -m benchmarks.rollouts [--rollouts 1000000] [--chromium /usr/bin/chromium]

The record is made up: 10,000 batches of 100 samples of some 300 characters. Each question is asked by the command, in a
process of its own, beside the same command on a run that kept nothing, whose time is that of starting up. The page has
512 samples of 4,096 tokens; its time is that until its load event, and until the first samples are shown, in headless
Chromium.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import save
from headrace.experience.records.rollout_codec import RolloutDetail, encode_detail
from headrace.store import RunStore
from headrace.store.rollouts import Rollout, Rollouts, Turn
from headrace.viewer.rollout_page import page
from headrace.viewer.token_text import TokenTexts

BATCHES, RUNS = 10_000, 5
TEXT = "the answer of this sum is therefore seven and that is not what was asked for in the first place"
WORDS = TEXT.split()
QUESTIONS = {
    "batch": ["--batch", "5000"],
    "prompt": ["--prompt", "p77"],
    "failed": ["--failed"],
    "best": ["--best"],
    "worst": ["--worst"],
    "text": ["--grep", "seven the seven the seven"],
}
PAGE_SAMPLES, PAGE_TOKENS = 512, 4096


def made_up(count: int) -> Iterator[Rollout]:
    rng = np.random.default_rng(0)
    ids = np.arange(8, dtype=np.int32)
    mask = ids > 2
    nothing = np.where(mask, 0, -1).astype(np.int32)
    data = encode_detail(RolloutDetail(ids, mask, np.zeros(8, np.float32), nothing, nothing, mask))
    for number in range(count):
        words = " ".join(WORDS[i] for i in rng.integers(0, len(WORDS), 60))
        failed = number % 50 == 0
        yield Rollout(
            batch=number * BATCHES // count,
            at=float(number),
            key=(0, number // 10, 0),
            episode=number % 10,
            sample=0,
            prompt_id=f"p{number // 10 % 5000}",
            status="failed" if failed else "completed",
            reason="reward: no" if failed else None,
            reward=None if failed else float(rng.random()),
            advantage=float(rng.normal()),
            tokens=60,
            staleness=int(rng.integers(0, 4)),
            turns=(Turn(False, f"Question {number}?"), Turn(True, words)),
            data=data,
        )


def write_record(folder: Path, count: int) -> None:
    store = RunStore.create(
        folder, config_yaml=f"model: {{path: {folder}}}\ndata: {{train: d}}\n", config_sha256="-", now=0
    )
    store.close()
    writer, part = Rollouts(folder), []
    for rollout in made_up(count):
        part.append(rollout)
        if len(part) == 10_000:
            writer.write(part)
            part = []
    writer.write(part)
    writer.close()


def seconds(*arguments: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "headrace.cli.main", *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def questions(folder: Path) -> dict[str, Any]:
    """Medians beyond what the same command takes where nothing is kept."""
    empty = folder.with_name("empty")
    write_record(empty, 0)
    found: dict[str, Any] = {}
    for name, arguments in QUESTIONS.items():
        beyond = [seconds("rollouts", str(folder), *arguments) - seconds("rollouts", str(empty)) for _ in range(RUNS)]
        found[name] = statistics.median(beyond)
        print(name, round(found[name], 3), flush=True)
    return found


class _Words(TokenTexts):
    def __init__(self) -> None:
        super().__init__(None)

    def pieces(self, tokens: Any) -> list[str]:
        return [f"{WORDS[token % len(WORDS)]} " for token in np.asarray(tokens).tolist()]


def large_page() -> str:
    rng = np.random.default_rng(0)
    rollouts = []
    for number in range(PAGE_SAMPLES):
        ids = rng.integers(0, 1000, PAGE_TOKENS).astype(np.int32)
        mask = np.arange(PAGE_TOKENS) >= 64
        versions = np.where(mask, 5 + np.arange(PAGE_TOKENS) // 1500, -1).astype(np.int32)
        logprobs = np.where(mask, -rng.random(PAGE_TOKENS), 0).astype(np.float32)
        trainer = (logprobs + rng.normal(0, 0.05, PAGE_TOKENS)).astype(np.float32)
        detail = RolloutDetail(
            ids, mask, logprobs, versions, np.where(mask, 0, -1).astype(np.int32), mask,
            np.full(PAGE_TOKENS, rng.normal(), np.float32), trainer,
        )  # fmt: skip
        rollouts.append(
            Rollout(
                7,
                0.0,
                (0, number // 8, 0),
                number % 8,
                0,
                f"p{number // 8}",
                "completed",
                None,
                0.5,
                0.1,
                4032,
                2,
                (Turn(False, "Question?"), Turn(True, "")),
                encode_detail(detail),
            )
        )
    return page("benchmark", rollouts, _Words())


PROBE = """<script>
addEventListener("load", () => requestAnimationFrame(function look() {
  const spans = document.querySelectorAll("article span").length;
  if (!spans) return requestAnimationFrame(look);
  const load = performance.getEntriesByType("navigation")[0].loadEventStart;
  fetch("/times", {method: "POST", body: JSON.stringify({load, shown: performance.now(), spans})});
}));
</script>"""
"""By the browser's own clock, in ms since it began to ask for the page."""


def page_row(folder: Path, chromium: str) -> dict[str, Any]:
    """Seconds until the page's load event, and until the first frame with samples in it."""
    text = large_page()
    # The page forbids every script but its own: the copy that is timed has no such policy.
    unguarded = text.replace('http-equiv="Content-Security-Policy"', 'name="x"')
    timed = unguarded.replace("</head>", f"{PROBE}</head>", 1).encode()
    told: queue.Queue[dict[str, float]] = queue.Queue()

    class Front(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/" else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            if self.path == "/":
                self.wfile.write(timed)

        def do_POST(self) -> None:
            told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    times = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Front) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for run in range(RUNS):
            browser = subprocess.Popen(
                [
                    chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                    "--disable-background-networking", "--disable-component-update", "--disable-sync",
                    f"--user-data-dir={folder}/chrome{run}", f"http://127.0.0.1:{server.server_port}/",
                ],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            try:
                times.append(told.get(timeout=120))
            finally:
                browser.terminate()
                browser.wait(30)
        server.shutdown()
    load, shown = (statistics.median(one[name] for one in times) / 1e3 for name in ("load", "shown"))
    return {"megabytes": len(text) / 1e6, "load_s": load, "shown_s": shown, "tokens_shown": int(times[0]["spans"])}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--chromium")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        began = time.perf_counter()
        write_record(folder, args.rollouts)
        result: dict[str, Any] = {"rollouts": args.rollouts, "written_s": time.perf_counter() - began}
        result["megabytes"] = (folder / "rollouts.db").stat().st_size / 1e6
        result["beyond_start_up_s"] = questions(folder)
        if args.chromium:
            result["page"] = page_row(Path(name), args.chromium)
    print(json.dumps(result))
    save("rollouts", result)


if __name__ == "__main__":
    main()
