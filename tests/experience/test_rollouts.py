"""What the record keeps of a sample, and which of a batch."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.experience.records.codec import CodecError
from headrace.experience.records.rollout_codec import RolloutDetail, decode_detail, encode_detail
from headrace.experience.records.rollouts import kept_of, quoted, rollout_of, turns_of
from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus
from headrace.store.rollouts import Turn

KEY = GroupKey(1, 5, 0)


def sample(mask: str, status: SampleStatus = SampleStatus.COMPLETED, failure: str | None = None) -> Sample:
    """A token is its place; `1` is of the policy, by version 4 at even places and 6 at odd ones."""
    chosen = np.array([one == "1" for one in mask])
    versions = np.where(chosen, np.where(np.arange(len(mask)) % 2, 6, 4), -1).astype(np.int32)
    return Sample(
        group=KEY,
        episode=1,
        index=0,
        tokens=np.arange(len(mask), dtype=np.int32),
        loss_mask=chosen,
        logprobs=np.where(chosen, -0.5, 0).astype(np.float32),
        versions=versions,
        branches=np.where(chosen, 0, -1).astype(np.int32),
        status=status,
        reward=0.25 if failure is None else None,
        failure=failure,
        terms={"exact": 1.0},
    )


def decode(tokens: object) -> str:
    return "".join(f"{token}," for token in np.asarray(tokens).tolist())


def test_turns_alternate_between_what_was_given_and_what_was_written() -> None:
    assert turns_of(sample("001101"), decode) == (
        Turn(False, "0,1,"),
        Turn(True, "2,3,"),
        Turn(False, "4,"),
        Turn(True, "5,"),
    )


def test_a_trained_sample_is_told_with_its_numbers() -> None:
    one = sample("00111")
    rollout = rollout_of(
        "p",
        one,
        decode,
        batch=7,
        at=3.0,
        reward=0.75,
        trained=np.array([False, False, True, True, False]),
        advantages=np.array([9, 9, 1, 2, 3], dtype=np.float32),
        trainer_logprobs=np.array([0, 0, -0.25, -0.5, -1], dtype=np.float32),
    )
    assert (rollout.batch, rollout.at, rollout.key, rollout.prompt_id) == (7, 3.0, (1, 5, 0), "p")
    assert (rollout.status, rollout.reason, rollout.reward) == ("completed", None, 0.75)
    assert rollout.advantage == 2.0, "over the tokens of the policy"
    assert rollout.staleness == 3, "batch 7, and version 4 at the first trained token"
    assert rollout.tokens == 3
    detail = decode_detail(rollout.data)
    assert detail.terms == {"exact": 1.0}
    assert detail.trainer_logprobs is not None
    assert detail.trainer_logprobs.tolist() == [0, 0, -0.25, -0.5, -1]


def test_one_that_failed_or_was_dropped_says_why() -> None:
    failed = sample("01", SampleStatus.FAILED, "reward: boom")
    group = Group(KEY, "p", 4, 8, (failed, sample("01")))
    told = rollout_of("p", failed, decode, batch=2, at=0.0, dropped="zero_spread")
    assert (told.status, told.reason, told.reward, told.staleness) == ("failed", "reward: boom", None, None)
    told = rollout_of("p", group.samples[1], decode, batch=2, at=0.0, dropped="zero_spread")
    assert (told.status, told.reason, told.reward) == ("dropped", "zero_spread", 0.25)


def test_a_group_is_quoted_on_one_line() -> None:
    group = Group(KEY, "p", 4, 8, (sample("0011"), sample("0011")))
    assert quoted(group, decode) == ("the prompt '0,1,', an answer of '2,3,', and the reward 0.25 for its 2 samples")
    said = quoted(group, lambda tokens: "\x1b[31m\n\u202e" + "x" * 500)
    assert said.isprintable()
    assert "'..." + "x" * 120 + "'" in said


def test_the_best_and_the_worst_are_kept_and_then_whole_groups() -> None:
    groups, rewards = [0, 0, 0, 1, 1, 1, 2, 2, 2], [0.5, 0.5, 0.5, 0.1, 0.5, 0.5, 0.5, 0.9, 0.5]
    assert kept_of(groups, rewards, 2, (0, 0)) == [3, 7]
    assert kept_of(groups, rewards, None, (0, 0)) == list(range(9))
    for batch in range(20):
        kept = kept_of(groups, rewards, 5, (0, batch))
        assert {3, 7} <= set(kept)
        assert len(kept) == 5
        assert any({places, places + 1, places + 2} <= set(kept) for places in (0, 3, 6)), "a group is whole"
    assert len({tuple(kept_of(groups, rewards, 5, (0, batch))) for batch in range(20)}) > 1
    assert kept_of([], [], 5, (0, 0)) == []
    assert kept_of(groups, rewards, 0, (0, 0)) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-1, 1)), max_size=20), st.integers(0, 25))
def test_as_many_are_kept_as_are_asked_for(rows: list[tuple[int, float]], count: int) -> None:
    kept = kept_of([group for group, _ in rows], [reward for _, reward in rows], count, (1, 2))
    assert len(kept) == len(set(kept)) == min(count, len(rows))
    assert kept == sorted(kept)


def test_what_is_not_known_stays_unknown() -> None:
    one = sample("011")
    detail = RolloutDetail(one.tokens, one.loss_mask, one.logprobs, one.versions, one.branches)
    again = decode_detail(encode_detail(detail))
    assert again.trained is again.advantages is again.trainer_logprobs is None
    assert again.versions.tolist() == [-1, 6, 4]


def test_metadata_comes_along_and_what_is_too_large_of_it_is_said() -> None:
    one = replace(sample("011"), metadata={"turns": 3, "long": "x" * 5000, "own": {"seen": [1.5, None, "é"]}})
    kept = decode_detail(rollout_of("p", one, decode, batch=0, at=0.0).data).metadata
    assert kept == {
        "turns": 3,
        "own": {"seen": [1.5, None, "é"]},
        "...": "left out of the record: 1 of 5012 bytes",
    }


def test_a_record_of_before_there_was_metadata_has_none() -> None:
    data = rollout_of("p", sample("011"), decode, batch=0, at=0.0).data
    assert data[0] == 0x93, "three fields"
    assert decode_detail(data).metadata == {}


@pytest.mark.parametrize(
    "data",
    [b"", b"\x93", b"\x01", b"\x93\x02\x80\x80", b"\x93\x01\x80\x80", b"\x93\x01\x01\x80", b"\x94\x01\x80\x80\x90"],
)
def test_bytes_that_are_none_are_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        decode_detail(data)
