"""Headers: what the controller knows of samples agrees with their arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.experience.columns import OnChosenTokens, group_of, put_samples, read, rewarded
from headrace.experience.header import GroupHeader, Span, header_of, longest_run, mask_of, spans_of
from headrace.experience.leases import Row
from headrace.experience.sample import Group, GroupKey, Sample, SampleStatus
from headrace.runtime.refs import InlineRefs, RefLost

KEY = GroupKey(1, 2, 3)


def sample(
    stamps: list[tuple[int, int] | None], episode: int = 0, status: SampleStatus = SampleStatus.COMPLETED
) -> Sample:
    """None is a token that the policy was given."""
    branches, versions = zip(*((-1, -1) if stamp is None else stamp for stamp in stamps), strict=True)
    return Sample(
        group=KEY,
        episode=episode,
        index=0,
        tokens=np.arange(len(stamps), dtype=np.int32),
        loss_mask=np.array([stamp is not None for stamp in stamps]),
        logprobs=np.zeros(len(stamps), np.float32),
        versions=np.array(versions, np.int32),
        branches=np.array(branches, np.int32),
        status=status,
        reward=0.5,
        metadata={"a": [1]},
        terms={"t": 1.0},
    )


def test_spans_end_where_the_version_changes_and_where_the_policy_was_given_tokens() -> None:
    stamps = [None, (0, 3), (0, 3), (0, 4), None, (0, 4), (1, 4), None]
    assert [*spans_of(sample(stamps))] == [
        Span(0, 3, 1, 3),
        Span(0, 4, 3, 4),
        Span(0, 4, 5, 6),
        Span(1, 4, 6, 7),
    ]
    assert [*spans_of(sample([None, None]))] == []


@given(st.lists(st.none() | st.tuples(st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=30))
def test_spans_are_the_mask_and_the_stamps(stamps: list[tuple[int, int] | None]) -> None:
    one = sample(stamps)
    header = header_of(Group(KEY, "p", 0, 4, (one,), 7)).samples[0]
    assert mask_of(header.spans, header.length).tolist() == one.loss_mask.tolist()
    found: list[tuple[int, int] | None] = [None] * len(stamps)
    for span in header.spans:
        assert span.tokens > 0
        found[span.start : span.end] = [(span.branch, span.number)] * span.tokens
    assert found == stamps
    assert header.response_tokens == one.response_tokens
    touching = zip(header.spans, header.spans[1:], strict=False)
    assert all(one.end < other.start or one[:2] != other[:2] for one, other in touching)


def group() -> Group:
    failed = sample([(0, 0)], episode=1, status=SampleStatus.FAILED)
    return Group(KEY, "p", 2, 4, (sample([None, (0, 2)]), failed, sample([None, (0, 2)], episode=2)), 1)


def test_a_group_is_whole_again_from_its_header_and_its_refs() -> None:
    refs, one = InlineRefs(), group()
    header, of_samples = header_of(one), put_samples(refs, one)
    again = group_of(refs, header, of_samples)
    assert (again.key, again.prompt_id, again.start_version, again.deadline, again.issue) == (KEY, "p", 2, 4, 1)
    for old, new in zip(one.samples, again.samples, strict=True):
        assert new.tokens is old.tokens
        assert (new.episode, new.status, new.reward, new.metadata, new.terms) == (
            old.episode,
            old.status,
            old.reward,
            old.metadata,
            old.terms,
        )
    assert header.nbytes == one.nbytes


def test_rewards_are_those_of_trainable_samples_in_order() -> None:
    header = header_of(group()).rewarded([1.0, None])
    assert [one.reward for one in header.samples] == [1.0, 0.5, None]
    assert [one.reward for one in rewarded(group(), header).samples] == [1.0, 0.5, None]


def test_an_episodes_reward_is_about_its_last_trainable_sample() -> None:
    header = header_of(group())
    assert header.last_of(2) == 2
    with pytest.raises(ValueError, match="no trainable sample of episode 1"):
        header.last_of(1)


def row_of(header: GroupHeader, columns: dict[str, object]) -> Row:
    return Row(0, header.samples[0], columns)


def test_a_rows_columns_are_read_through_their_refs() -> None:
    refs = InlineRefs()
    one = Group(KEY, "p", 0, 4, (sample([None, (0, 1), None, (0, 2)]),))
    (ref,) = put_samples(refs, one)
    other = refs.put({"values": np.ones(4, np.float32)})
    row = row_of(
        header_of(one), {"tokens": ref, "loss_mask": ref, "values": other, "advantages": OnChosenTokens(0.5), "n": 3}
    )
    found = read(refs, row, ("tokens", "values", "advantages", "n"))
    assert sorted(found) == ["advantages", "n", "tokens", "values"]
    assert found["tokens"] is one.samples[0].tokens
    assert found["advantages"].tolist() == [0, 0.5, 0, 0.5]
    assert found["n"] == 3
    refs.free(other)
    with pytest.raises(RefLost):
        read(refs, row, ("values",))


def test_the_longest_turn_goes_over_a_change_of_versions() -> None:
    """Two tokens of version 3 and one of version 4 in a row, then an observation, then two."""
    assert longest_run([Span(0, 3, 1, 3), Span(0, 4, 3, 4), Span(0, 4, 5, 6), Span(1, 4, 6, 7)]) == 3
    assert longest_run([Span(0, 0, 1, 2), Span(0, 0, 4, 9)]) == 5
    assert longest_run([]) == 0
