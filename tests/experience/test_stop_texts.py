"""Completions end at a stop text: at the same token, whatever the chunks, the interruptions and the batch-mates."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from chat_styles import byte_tokenizer, metaspace_tokenizer
from engines_helpers import published, serving, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_helpers import EOS, ScriptedEngine, char_tokenizer, chunk, ids, policy

from headrace.engines.embedded.engine import EmbeddedEngine
from headrace.engines.protocol import FinishReason, SamplingParams, SwapMode
from headrace.experience.sample import GroupKey, SampleStatus
from headrace.experience.text.stop_texts import StopTexts
from headrace.experience.text.tokens import TextCodec
from headrace.rollout.policy import Completion, Policy
from headrace.rollout.trajectory import Trajectory
from headrace.weights.version import INITIAL, Version


def generate(*parts: list[int], stop: tuple[str, ...], finish: FinishReason = FinishReason.STOP) -> Completion:
    """What comes of `parts`, each an engine's answer, all but the last interrupted."""
    answers = [lambda _, part=part: chunk(part, FinishReason.INTERRUPTED) for part in parts[:-1]]
    engine = ScriptedEngine(*answers, lambda _: chunk(parts[-1], finish))
    return asyncio.run(policy(engine, stop=stop, sampling=SamplingParams(max_new_tokens=200)).generate(ids("q")))


def test_a_completion_ends_with_the_token_that_completes_a_stop_text() -> None:
    completion = generate([*ids("say 42</answer> and more"), EOS], stop=("</answer>",))
    assert completion.tokens.tolist() == ids("say 42</answer>").tolist()
    assert len(completion.logprobs) == len(completion.versions) == len(completion.tokens)
    assert completion.finish_reason is FinishReason.STOP
    trajectory = Trajectory(ids("q"))
    trajectory.add_completion(completion)
    assert trajectory.status is SampleStatus.COMPLETED


def test_a_text_that_begins_in_the_prompt_is_none() -> None:
    engine = ScriptedEngine(lambda _: chunk([*ids("b ab"), EOS]))
    completion = asyncio.run(policy(engine, stop=("ab",)).generate(ids("a")))
    assert completion.tokens.tolist() == ids("b ab").tolist()


def test_a_text_that_begins_in_the_turn_so_far_is_one() -> None:
    engine = ScriptedEngine(lambda _: chunk([*ids("b> ab"), EOS]))
    asked = policy(engine, stop=("ab>",)).generate(ids("q a"), begun=1)
    assert asyncio.run(asked).tokens.tolist() == ids("b>").tolist()


def test_a_turn_that_has_one_already_gets_no_token() -> None:
    engine = ScriptedEngine()
    completion = asyncio.run(policy(engine, stop=("ab",)).generate(ids("q abc"), begun=4))
    assert (completion.tokens.tolist(), completion.finish_reason) == ([], FinishReason.STOP)
    assert not engine.requests


def test_what_the_last_token_says_beyond_stays() -> None:
    texts = {1: "an</an", 2: "swer> wow"}
    stops = StopTexts(lambda tokens: "".join(texts.get(token, "") for token in tokens.tolist()), ("</answer>",))
    assert stops.push(np.array([1, 2, 1], dtype=np.int32)) == 2


def test_a_special_token_counts_as_its_text() -> None:
    assert generate([*ids("ab"), EOS, *ids("cd")], stop=("<eos>",)).tokens.tolist() == [*ids("ab"), EOS]


def test_the_first_to_be_complete_wins_and_a_stop_token_before_it() -> None:
    assert generate([*ids("xabcd"), EOS], stop=("abcd", "bc")).tokens.tolist() == ids("xabc").tolist()
    assert generate([*ids("xa"), EOS], stop=("ab",)).tokens.tolist() == [*ids("xa"), EOS]
    cut = generate(list(ids("xa")), stop=("ab",), finish=FinishReason.LENGTH)
    assert cut.finish_reason is FinishReason.LENGTH


def test_a_stop_text_at_the_limit_is_a_stop() -> None:
    completion = generate(list(ids("xab")), stop=("ab",), finish=FinishReason.LENGTH)
    assert completion.finish_reason is FinishReason.STOP


def test_characters_of_several_tokens_are_looked_at_when_they_are_whole() -> None:
    codec = TextCodec(byte_tokenizer())
    tokens = codec.encode("naïve – done. More")
    for stop, said in (("–", "naïve –"), ("ï", "naï"), ("done", "naïve – done")):
        stops = StopTexts(codec.decode, (stop,))
        count = next(count for token in tokens if (count := stops.push(np.array([token]))) is not None)
        assert codec.decode(tokens[:count]) == said


@given(st.lists(st.sampled_from(["▁", "a", "▁a", "b"]), min_size=1, max_size=8), st.text("ab ", min_size=1, max_size=3))
@settings(max_examples=100)
def test_it_is_looked_for_in_the_text_that_all_others_read(words: list[str], stop: str) -> None:
    """Which has no space before the first word, by a tokenizer of SentencePiece's kind."""
    tokenizer = metaspace_tokenizer()
    codec = TextCodec(tokenizer)
    tokens = np.array(tokenizer.convert_tokens_to_ids(words), np.int32)
    engine = ScriptedEngine(lambda _: chunk(tokens, FinishReason.LENGTH))
    asked = policy(engine, text=codec, stop=(stop,)).generate(codec.encode_text("b"))
    count = next((n for n in range(1, len(tokens) + 1) if stop in codec.decode(tokens[:n])), len(tokens))
    assert asyncio.run(asked).tokens.tolist() == tokens[:count].tolist()


@given(
    st.text("ab</", min_size=1, max_size=40),
    st.lists(st.text("ab</", min_size=1, max_size=4), min_size=1, max_size=3),
    st.data(),
)
@settings(max_examples=40)
def test_completions_one_after_another_end_where_one_would(text: str, stops: list[str], data: st.DataObject) -> None:
    """However often a turn was cut off."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=3)))
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    expected = text[: min(ends)] if ends else text
    turn = ""
    for end in (*cuts, len(text)):
        rest = list(ids(text[len(turn) : end]))
        engine = ScriptedEngine(lambda _, rest=rest: chunk(rest))
        asked = policy(engine, stop=tuple(stops), sampling=SamplingParams(max_new_tokens=200))
        turn += char_tokenizer().decode(asyncio.run(asked.generate(ids("q" + turn), begun=len(turn))).tokens)
        if turn != text[:end]:
            break
    assert turn == expected


@given(
    st.text("ab</", min_size=1, max_size=40),
    st.lists(st.text("ab</", min_size=1, max_size=4), min_size=1, max_size=3),
    st.data(),
)
@settings(max_examples=40)
def test_chunks_and_interruptions_change_nothing(text: str, stops: list[str], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    parts = [list(ids(text[a:b])) for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    parts[-1].append(EOS)
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    expected = list(ids(text[: min(ends)])) if ends else [*ids(text), EOS]
    assert generate(*parts, stop=tuple(stops)).tokens.tolist() == expected


@pytest.mark.parametrize("swaps", [False, True])
def test_on_a_real_engine_batch_mates_and_new_weights_change_nothing_before_the_stop(swaps: bool) -> None:
    """Without stops each completion is 24 tokens; with them it is the same up to its own stop, and frees its slot."""
    model = tiny_model()
    tokenizer = char_tokenizer()

    async def play(stop: tuple[str, ...]) -> list[Completion]:
        async with serving(model, max_concurrent_sequences=3) as engine:
            assert isinstance(engine, EmbeddedEngine)

            def one(number: int) -> Policy:
                key = GroupKey(0, number, 0)
                how: dict[str, Any] = {"max_context": 128, "request_timeout_s": 100.0}
                made = policy(engine, stop=stop, sampling=SamplingParams(max_new_tokens=24), **how)
                return Policy(made._settings, group=key, episode=0, min_version=INITIAL)

            async def swap() -> None:
                if swaps:  # to the weights that it has, so that nothing but the interruption is new
                    await asyncio.sleep(0.02)
                    await engine.update(published(model, Version(0, 1)), SwapMode.RECOMPUTE)

            *done, _ = await asyncio.gather(*(one(number).generate(ids("q")) for number in range(5)), swap())
            async with asyncio.timeout(60):  # the slot of one that was ended is free after the step at hand
                while engine.stats().running or engine.stats().waiting:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            return list(done)

    whole = asyncio.run(play(()))
    # Letters that some of them write in their midst.
    stops = tuple({tokenizer.decode(one.tokens[8 + 4 * place]) for place, one in enumerate(whole[:3])})
    stopped = asyncio.run(play(stops))
    assert len({len(completion.tokens) for completion in stopped}) > 1, "they end at different places"
    for one, other in zip(whole, stopped, strict=True):
        letters = [tokenizer.decode(token) for token in one.tokens]
        ends = [place for place, letter in enumerate(letters) if letter in stops]
        count = len(other.tokens)
        np.testing.assert_array_equal(other.tokens, one.tokens[:count])
        np.testing.assert_allclose(other.logprobs, one.logprobs[:count], atol=1e-5)
        assert count == (ends[0] + 1 if ends else 24)
        assert (other.finish_reason is FinishReason.STOP) == bool(ends)
