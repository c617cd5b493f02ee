"""What is asked of a vLLM server first: what it tells of itself, and how it answers a request that is none."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import numpy as np
import pytest

from headrace.config.errors import ConfigError
from headrace.engines.protocol import GenerateRequest, RequestError, SamplingParams
from headrace.engines.servers.dialect import Expected
from headrace.engines.servers.http import ServerRefused
from headrace.engines.servers.vllm import WIRE, VllmDialect

VOCAB = 64
TOLD = {
    "wire": WIRE,
    "transfer": "headrace",
    "model": {"vocab_size": VOCAB},
    "max_model_len": 64,
    "dtype": "torch.float32",
    "ranks": 1,
    "logprobs_mode": "processed_logprobs",
    "max_logprobs": 21,
}


class Told:
    """In the place of HTTP."""

    url = "http://here"

    def __init__(self, told: dict[str, Any], status: int) -> None:
        self._told = told
        self._status = status

    async def call(self, method: str, path: str, body: Any = None, **_: Any) -> Any:
        if path == "/version":
            return {"version": "0.32.0"}
        if path == "/collective_rpc":
            return {"results": [self._told]}
        raise ServerRefused(path, self._status, "")


def dialect(status: int = 422, **told: Any) -> VllmDialect:
    return VllmDialect(Told({**TOLD, **told}, status), VOCAB)  # type: ignore[arg-type]


def meet(met: VllmDialect, most_kept: int = 5) -> None:
    asyncio.run(met.meet(Expected({"vocab_size": VOCAB}, 64, "float32", True, most_kept)))


def test_one_that_fits_is_met() -> None:
    meet(dialect())
    meet(dialect(max_logprobs=-1), most_kept=40)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"logprobs_mode": "raw_logprobs"}, "are raw_logprobs, .* start it with --logprobs-mode processed_logprobs"),
        ({"max_logprobs": 20}, "tells 20 log-probs .* need 21 here; start it with --max-logprobs 21"),
        ({"status": 403}, r"does not answer /inference/v1/generate \(403\); start it with --enable-scale-out"),
        ({"status": 401}, r"refuses who asks \(401\); set engine.token_env"),
        ({"wire": WIRE - 1}, f"has headrace-vllm of wire {WIRE - 1}"),
    ],
)
def test_one_that_does_not_is_told_how_to_be_started(told: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        meet(dialect(**told))


def test_ids_as_likely_as_the_last_one_are_kept() -> None:
    """top_k 2 of the probabilities 0.4, 0.3 and 0.3 keeps all three; told two of them, it is not trained."""
    request = GenerateRequest(
        "r", np.array([1], np.int32), SamplingParams(max_new_tokens=1, top_k=2), noise_key=0, return_kept=True
    )
    top = [{"token_id": n, "logprob": math.log(p)} for n, p in ((7, 0.4), (9, 0.3), (3, 0.3))]
    top.append({"token_id": 5, "logprob": -9999.0})

    def choice(tops: list[dict[str, Any]]) -> dict[str, Any]:
        return {"token_ids": [7], "logprobs": {"content": [{"logprob": math.log(0.4), "top_logprobs": tops}]}}

    kept = dialect()._piece(choice(top), request).kept
    assert kept is not None
    assert kept.ids()[0].tolist() == [3, 7, 9]
    with pytest.raises(RequestError, match=r"told 2 ids of a probability of 0\.7000: more than 16 others"):
        dialect()._piece(choice(top[:2]), request)
