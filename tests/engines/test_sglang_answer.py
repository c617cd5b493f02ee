"""What SGLang's chunks say, as the pieces of an answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.engines.protocol import EngineError, FinishReason, GenerateRequest, RequestError, SamplingParams
from headrace.engines.servers.http import ServerGone
from headrace.engines.servers.sglang_answer import SglangAnswer, body_of, server_id

VOCAB = 50


def request(**sampling: Any) -> GenerateRequest:
    params = SamplingParams(**{"max_new_tokens": 9, **sampling})
    return GenerateRequest("r", np.array([1, 2], np.int32), params, noise_key=0, return_kept=True)


def chunk(count: int, tokens: list[int], finish: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """`count`: of tokens so far. `tokens`: those that the chunk lists, each with a log-prob of a tenth of it."""
    logprobs = [[-token / 10, token, None] for token in tokens]
    meta = {"completion_tokens": count, "finish_reason": finish, "output_token_logprobs": logprobs, **more}
    return {"output_ids": tokens, "meta_info": meta}


@pytest.mark.parametrize(
    "chunks", [[[4], [5, 6]], [[4], [4, 5, 6]]], ids=["each has what is new", "each has all that came"]
)
def test_a_piece_is_what_is_new(chunks: list[list[int]]) -> None:
    answer = SglangAnswer(request(), VOCAB)
    first, second = answer.piece(chunk(1, chunks[0])), answer.piece(chunk(3, chunks[1]))
    assert (first.tokens.tolist(), second.tokens.tolist()) == ([4], [5, 6])
    assert second.logprobs == pytest.approx([-0.5, -0.6])


def test_the_end_of_what_was_aborted_repeats_nothing() -> None:
    answer = SglangAnswer(request(), VOCAB)
    answer.piece(chunk(2, [4, 5]))
    spans = [{"version": "0.1", "start": 0, "end": 2}]
    last = answer.piece(chunk(2, [4, 5], {"type": "abort", "message": "Aborted"}, weight_versions=spans))
    assert (len(last.tokens), last.finish, last.spans) == (0, FinishReason.ABORT, (("0.1", 0, 2),))


def test_under_truncation_the_log_prob_is_that_of_what_was_kept() -> None:
    answer = SglangAnswer(request(top_k=3), VOCAB)
    masks, logprobs = [[7, 4], [6, 5, 9]], [-0.25, -0.5]
    piece = answer.piece(chunk(2, [4, 5], output_token_sampling_mask=masks, output_token_sampling_logprobs=logprobs))
    assert piece.logprobs.tolist() == [-0.25, -0.5]
    assert piece.kept is not None
    assert [each.tolist() for each in piece.kept.ids()] == [[4, 7, 5, 6, 9], [2, 3]]


def test_a_chunk_without_its_log_probs_is_no_answer() -> None:
    with pytest.raises(ServerGone, match="request r: 2 tokens came with 1 of output_token_logprobs"):
        SglangAnswer(request(), VOCAB).piece(chunk(2, [5]))
    with pytest.raises(ServerGone, match="1 tokens came with 0 of output_token_sampling_logprobs"):
        SglangAnswer(request(top_p=0.5), VOCAB).piece(chunk(1, [5]))


def test_an_end_of_text_that_was_not_asked_for_does_not_end_an_answer() -> None:
    def finish(matched: Any) -> FinishReason | None:
        told = chunk(1, [7], {"type": "stop", "matched": matched})
        return SglangAnswer(request(stop_token_ids=(7,)), VOCAB).piece(told).finish

    assert finish(7) is FinishReason.STOP
    assert finish(2) is FinishReason.ABORT, "whoever asks goes on behind it"
    with pytest.raises(EngineError, match="request r: NaN happened"):
        finish("NaN happened")


def test_a_request_that_could_not_be_served_says_why() -> None:
    def end(code: int) -> None:
        told = {"type": "abort", "message": "Sampling support exceeds 4096", "status_code": code}
        SglangAnswer(request(), VOCAB).piece(chunk(0, [], told))

    with pytest.raises(RequestError, match="request r: Sampling support exceeds 4096"):
        end(400)
    with pytest.raises(EngineError, match="Sampling support"):
        end(500)


def test_stop_tokens_are_not_ignored_with_the_models_own() -> None:
    assert body_of(request(), salt="0")["sampling_params"]["ignore_eos"] is True
    params = body_of(request(stop_token_ids=(7,)), salt="0")["sampling_params"]
    assert (params["ignore_eos"], params["stop_token_ids"]) == (False, [7])


def test_no_id_is_the_beginning_of_another() -> None:
    names = [server_id(name) for name in ("a", "a-1", "a-10", "a-1.2", "b" * 12)]
    assert not [(x, y) for x in names for y in names if x != y and y.startswith(x)]
