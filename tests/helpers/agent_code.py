"""Agents as a user writes them, for runs whose modules import them by file."""

SOURCE = '''
import json
import urllib.error
import urllib.request

import aiohttp


def _post(episode, body, key=None):
    request = urllib.request.Request(
        f"{episode.base_url}/chat/completions",
        json.dumps({"model": episode.model, **body}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {key or episode.api_key}"},
    )
    with urllib.request.urlopen(request, timeout=240) as response:
        return json.load(response)


def two_turns(episode):
    messages = [{"role": "user", "content": episode.row["prompt"]}]
    for word in ("more", "end"):
        message = _post(episode, {"messages": messages, "max_tokens": 6})["choices"][0]["message"]
        messages += [message, {"role": "user", "content": word}]
    return sum(map(ord, message["content"])) % 7 / 7


async def one_turn(episode):
    headers = {"Authorization": f"Bearer {episode.api_key}"}
    body = {"model": episode.model, "messages": [{"role": "user", "content": episode.row["prompt"]}]}
    async with aiohttp.ClientSession(headers=headers) as client:
        async with client.post(f"{episode.base_url}/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
            await response.json()


def rewrites(episode):
    for place in range(2):
        _post(episode, {"messages": [{"role": "user", "content": f"try {place}"}], "max_tokens": 4})


def samples_in_three_ways(episode):
    """Turns that are drawn end by a letter, so that most are gone on from."""
    messages = [{"role": "user", "content": episode.row["prompt"]}]
    limits = {"stop": [*"abcdefghijklmnop"], "max_tokens": 12}
    for way in ({"temperature": 0.6, "top_p": 0.8}, {"temperature": 1.5}, {"temperature": 0}):
        message = _post(episode, {"messages": messages, **limits, **way})["choices"][0]["message"]
        messages += [message, {"role": "user", "content": "on"}]
    return sum(map(ord, "".join(each["content"] for each in messages))) % 7 / 7


def all_greedy(episode):
    """Every second episode."""
    way = {"temperature": 0} if int(episode.name.rpartition("/")[2]) % 2 else {}
    _post(episode, {"messages": [{"role": "user", "content": episode.row["prompt"]}], "max_tokens": 6, **way})
    return float("temperature" in way)


def bad_sometimes(episode):
    """Every second episode does something wrong."""
    if int(episode.name.rpartition("/")[2]) % 3 == 0:
        _post(episode, {"messages": [{"role": "user", "content": "a"}]}, key="hr-0-00000000000000000000000000000000")
    return two_turns(episode)


def hangs_sometimes(episode):
    result = two_turns(episode)
    if int(episode.name.rpartition("/")[2]) == 0 and episode.row["prompt"].startswith("0"):
        import time
        time.sleep(10000)
    return result

OLD = []


async def errs(episode):
    """The first episode of each group does something wrong, each group another thing, by the official client."""
    import openai

    group, _, number = episode.name.rpartition("/")
    place = int(group.partition("#")[0].partition("/")[2])
    user = {"role": "user", "content": episode.row["prompt"]}
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{"}}
    wrong = [
        {"messages": [{**user, "content": "x" * 2**20}]},
        {"model": "gpt-4"},
        {"messages": [{**user, "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
        {"messages": [user, {"role": "assistant", "tool_calls": [call]}]},
        {"extra_headers": {"Authorization": "Bearer hr-0-00000000000000000000000000000000"}},
        {"extra_headers": {"Authorization": f"Bearer {(OLD or [None])[0]}"}},
    ]
    async with openai.AsyncOpenAI(base_url=episode.base_url, api_key=episode.api_key, max_retries=0) as client:
        asked = {"model": episode.model, "messages": [user], "max_tokens": 4}
        await client.chat.completions.create(**{**asked, **(wrong[place % len(wrong)] if number == "0" else {})})
    OLD.append(episode.api_key)
'''

PROGRAM = """
import json
import os
import sys
import urllib.request

told = json.loads(sys.stdin.readline())
body = {"model": told["model"], "messages": [{"role": "user", "content": told["row"]["prompt"]}], "max_tokens": 5}
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
    print(sum(map(ord, json.load(answer)["choices"][0]["message"]["content"])) % 7 / 7)
"""
