"""One request of SGLang: what is asked, and what came since the last chunk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.algorithms.kept_sets import KeptSets
from headrace.engines.protocol import EngineError, FinishReason, GenerateRequest, RequestError
from headrace.engines.servers.dialect import Piece, Span
from headrace.engines.servers.http import ServerGone

_FINISHES = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}
_BAD_REQUEST = 400


def server_id(request_id: str) -> str:
    """As the server knows it: none is the beginning of another, since SGLang aborts all that begin with an id."""
    return f"{len(request_id)}:{request_id}"


def body_of(request: GenerateRequest, *, salt: str) -> dict[str, Any]:
    """`salt`: of the prefix cache."""
    sampling = request.sampling
    return {
        "rid": server_id(request.request_id),
        "input_ids": request.prompt.tolist(),
        "stream": True,
        "extra_key": salt,
        "return_logprob": True,
        "logprob_start_len": -1,
        "return_sampling_mask": sampling.truncates,
        "sampling_params": {
            "max_new_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k if sampling.top_k > 0 else -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "stop_token_ids": list(sampling.stop_token_ids),
            "ignore_eos": not sampling.stop_token_ids,  # else it ignores these as well
            "skip_special_tokens": False,
        },
    }


class SglangAnswer:
    """Chunks have what is new, or all that came so far, as the server was started."""

    def __init__(self, request: GenerateRequest, vocab_size: int) -> None:
        self._request = request
        self._vocab_size = vocab_size
        self._came = 0

    def piece(self, event: Mapping[str, Any]) -> Piece:
        """Raises ServerGone for a chunk that is not whole, RequestError or EngineError for the end of a request that
        could not be served."""
        meta = event["meta_info"]
        new = int(meta["completion_tokens"]) - self._came
        self._came += new
        told = self._last(meta, "output_token_logprobs", new)
        finish, spans = meta.get("finish_reason"), meta.get("weight_versions")
        truncates = self._request.sampling.truncates
        logprobs = self._last(meta, "output_token_sampling_logprobs", new) if truncates else [each[0] for each in told]
        return Piece(
            np.array([each[1] for each in told], np.int32),
            np.array(logprobs, np.float32),
            self._kept(self._last(meta, "output_token_sampling_mask", new)) if truncates and new else None,
            None if finish is None else self._finish(finish),
            None if spans is None else tuple(Span(each["version"], each["start"], each["end"]) for each in spans),
        )

    def _last(self, meta: Mapping[str, Any], name: str, count: int) -> Sequence[Any]:
        found = meta.get(name) or ()
        if len(found) < count:
            raise ServerGone(f"request {self._request.request_id}: {count} tokens came with {len(found)} of {name}")
        return found[len(found) - count :]

    def _kept(self, masks: Sequence[Sequence[int]]) -> KeptSets | None:
        if not self._request.return_kept:
            return None
        ids = np.array([each for mask in masks for each in sorted(mask)], np.int32)
        return KeptSets.of(ids, np.array([len(mask) for mask in masks], np.int32), self._vocab_size)

    def _finish(self, told: Mapping[str, Any]) -> FinishReason:
        name, kind, code = self._request.request_id, told.get("type"), told.get("status_code")
        if kind not in _FINISHES:
            raise ServerGone(f"request {name} ended by {kind!r}")
        if code is not None:
            kind_of_error = RequestError if code == _BAD_REQUEST else EngineError
            raise kind_of_error(f"request {name}: {str(told.get('message'))[:400]}")
        if kind == "stop" and (matched := told.get("matched")) not in self._request.sampling.stop_token_ids:
            if isinstance(matched, str):
                raise EngineError(f"request {name}: {matched[:400]}")
            return FinishReason.ABORT  # an end of text that is none here: whoever asks goes on
        return _FINISHES[kind]
