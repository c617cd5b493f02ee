"""The experts that tokens were routed to, from completions to a sample."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.engines.completions import Asked, Completion, _Progress, joined_parts
from headrace.engines.protocol import EngineError, FinishReason, SamplingParams, TokenChunk
from headrace.experience.records.codec import CodecError, decode_group, encode_group
from headrace.experience.sample import Group, GroupKey, Sample
from headrace.rollout.trajectory import Trajectory

KEY = GroupKey(0, 0, 0)


def experts(begin: int, end: int, dtype: type = np.uint8) -> NDArray[np.unsignedinteger]:
    """[end - begin, 2 layers, 1]: each token's are its place."""
    return np.repeat(np.arange(begin, end, dtype=dtype), 2).reshape(-1, 2, 1)


def chunk(tokens: int, told: NDArray[np.unsignedinteger] | None) -> TokenChunk:
    ints = np.zeros(tokens, np.int32)
    return TokenChunk(ints, np.zeros(tokens, np.float32), ints, ints, experts=told)


def completion(tokens: int, told: NDArray[np.unsignedinteger] | None) -> Completion:
    return joined_parts([chunk(tokens, told)], FinishReason.STOP)


def sample_of(trajectory: Trajectory) -> Sample:
    return trajectory.to_sample(KEY, 0, 0)


def test_a_request_that_goes_on_elsewhere_asks_for_what_it_does_not_have() -> None:
    """A prompt of 4 tokens, of which an engine sampled 3 and died; the next one is asked from the 7th token on."""
    asked = Asked("r", np.zeros(4, np.int32), SamplingParams(max_new_tokens=9), 0, return_experts=True)
    state = _Progress(asked)
    assert state.next_request(None).experts_from == 0
    state.take(chunk(3, experts(0, 6)))
    assert state.next_request(None).experts_from == 6
    state.take(chunk(2, experts(6, 8)))
    with pytest.raises(EngineError, match="a chunk has the experts of 1 tokens, and 2 were fed"):
        state.take(chunk(2, experts(8, 9)))
    with pytest.raises(EngineError, match="experts of 0 tokens"):
        state.take(chunk(2, None))
    parts = [chunk(3, experts(0, 6)), chunk(2, experts(6, 8))]
    whole = joined_parts(parts, FinishReason.LENGTH)
    assert np.array_equal(whole.experts, experts(0, 8))
    assert np.array_equal(whole.first(1).experts, experts(0, 4))


def test_over_several_turns_each_token_keeps_what_it_was_first_told() -> None:
    """Prompt of 3, turn of 2, observation of 4, turn of 2: the second turn tells all but the last of 11 tokens."""
    trajectory = Trajectory([1, 2, 3])
    trajectory.add_completion(completion(2, experts(0, 4)))
    assert sample_of(trajectory).unrouted == 0
    trajectory.add_observation([4, 5, 6, 7])
    trajectory.add_completion(completion(2, experts(100, 110)))
    sample = sample_of(trajectory)
    assert sample.experts is not None
    assert sample.experts[:, 0, 0].tolist() == [0, 1, 2, 3, *range(104, 110)]
    assert sample.unrouted == 0
    assert sample.nbytes == sample_of(trajectory).nbytes == 11 * 17 + 10 * 2


def test_what_is_told_of_another_history_leaves_tokens_without() -> None:
    """A prompt that is not the one that was generated from: the log-prob of the 6th token depends on 5 others."""
    trajectory = Trajectory([1, 2, 3, 4])
    trajectory.add_completion(completion(2, experts(0, 4)))
    assert sample_of(trajectory).unrouted == 5


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_a_record_holds_them(dtype: type) -> None:
    trajectory = Trajectory([1, 2, 3])
    trajectory.add_completion(completion(2, experts(0, 4, dtype)))
    sample, plain = sample_of(trajectory), sample_of(Trajectory([1, 2, 3]))
    data = encode_group(Group(KEY, "p", 0, 0, (sample, plain)))
    found = decode_group(data).samples
    assert found[0].experts is not None
    assert found[0].experts.dtype == dtype
    assert np.array_equal(found[0].experts, experts(0, 4, dtype))
    assert found[1].experts is None
    with pytest.raises(CodecError):
        decode_group(encode_group(Group(KEY, "p", 0, 0, (sample,))).replace(b"|u1", b"|b1").replace(b"<u2", b"<u4"))


def test_experts_of_more_tokens_than_there_are_are_no_sample() -> None:
    trajectory = Trajectory([1, 2, 3])
    with pytest.raises(ValueError, match=r"experts are uint8 \[4, 2, 1\], of 3 tokens"):
        replace(sample_of(trajectory), experts=experts(0, 4))
