"""An agent that runs by itself, as a user may write one: `python outside_agent.py GATEWAY_JSON HOW NOTES`.

It takes tasks until the run is over, and comes back to one that was resumed. HOW: `well`, `dies` once it has asked in
its first episode, `silent`: it never reports its first episode, `unscored`: it tells no rewards, `slow`: each episode
takes it 3 seconds. NOTES: a file that takes a line for each task.
"""

import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

where, how, notes = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
until = time.monotonic() + 150
taken = 0


def post(url: str, body: Any, key: str) -> Any:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=60) as answer:
        return json.load(answer)


def note(**words: Any) -> None:
    with notes.open("a") as file:
        file.write(json.dumps(words) + "\n")


def play(tasks: str, task: dict[str, Any]) -> None:
    global taken
    taken += 1
    messages = [{"role": "user", "content": task["row"]["prompt"]}]
    for word in ("more", "end"):
        body = {"model": task["model"], "messages": messages, "max_tokens": 6}
        message = post(f"{task['base_url']}/chat/completions", body, task["api_key"])["choices"][0]["message"]
        messages += [message, {"role": "user", "content": word}]
        time.sleep(1.5 * (how == "slow"))
        if taken == 1 and how == "dies":
            note(task=task["group"], died=True)
            os._exit(3)
    if taken == 1 and how == "silent":
        note(task=task["group"], silent=True)
        return
    reward = sum(map(ord, message["content"])) % 7 / 7
    if how != "unscored":
        post(f"{tasks}/{task['id']}/reward", {"reward": reward}, task["api_key"])
    post(f"{tasks}/{task['id']}/end", {}, task["api_key"])
    note(task=task["group"], episode=task["episode"], evaluation=task["evaluation"], reward=reward)


while time.monotonic() < until:
    try:
        tasks = json.loads(where.read_text())["tasks"]
        try:
            play(tasks, post(tasks, {"wait_s": 30}, "none"))
        except urllib.error.HTTPError as error:
            code = json.load(error)["error"]["code"]
            if code == "run_over":
                break
            note(status=error.code, code=code)
            time.sleep(min(float(error.headers.get("Retry-After", 0)), 2))
    except (OSError, ValueError, http.client.HTTPException):  # the run is away, or not there yet
        time.sleep(0.1)
