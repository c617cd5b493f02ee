"""Text from tokens: whole characters, exact stop strings, and the same text however it comes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from http_scripted import EOS, byte_tokenizer, ids, logprob
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from headrace.engines.protocol import FinishReason, TokenChunk
from headrace.experience.text.detokenize import Detokenizer
from headrace.experience.text.stops import StopStrings
from headrace.gateway.choice_text import TextDelta, TextStream

BYTES = byte_tokenizer()


def decode(token_ids: list[int]) -> str:
    return str(BYTES.decode(token_ids, skip_special_tokens=True))


def cut(data: st.DataObject, tokens: list[int]) -> list[list[int]]:
    edges = sorted(data.draw(st.sets(st.integers(1, max(1, len(tokens) - 1)))) | {0, len(tokens)})
    return [tokens[a:b] for a, b in pairwise(edges)]


@settings(deadline=None)
@given(prompt=st.text(max_size=8), text=st.text(max_size=20), data=st.data())
def test_pieces_are_whole_characters_and_add_up(prompt: str, text: str, data: st.DataObject) -> None:
    detokenizer = Detokenizer(decode, prompt.encode())
    pieces = [detokenizer.push(piece) for piece in cut(data, ids(text))]
    assert "".join(pieces) + detokenizer.flush() == text
    assert not any("\ufffd" in piece for piece in pieces) or "\ufffd" in text


def test_character_is_given_out_with_its_last_byte_and_an_unfinished_one_at_the_end() -> None:
    detokenizer = Detokenizer(decode, ids("prompt"))
    assert [detokenizer.push([byte]) for byte in ids("a😀b")] == ["a", "", "", "", "😀", "b"]
    assert [detokenizer.push([byte]) for byte in (0xF0, 0x9F)] == ["", ""]
    assert detokenizer.flush() == "\ufffd"


def test_long_garbage_is_not_held_back_for_ever() -> None:
    detokenizer = Detokenizer(decode, [])
    pieces = [detokenizer.push([0xFF]) for _ in range(40)]
    assert sum(map(len, pieces)) >= 30
    assert "".join(pieces) + detokenizer.flush() == "\ufffd" * 40


def test_a_character_behind_long_garbage_is_whole() -> None:
    detokenizer = Detokenizer(decode, [])
    pieces = [detokenizer.push([byte]) for byte in [*[0xFF] * 8, *ids("😀!")]]
    assert "".join(pieces) == "\ufffd" * 8 + "😀!"


def test_prompt_that_ends_in_half_a_character_is_finished_by_the_response() -> None:
    smile = ids("😀")
    detokenizer = Detokenizer(decode, [*ids("hi "), *smile[:2]])
    assert [detokenizer.push([byte]) for byte in (*smile[2:], 0x21)] == ["", "😀", "!"]


def test_space_before_the_first_word_is_kept_where_the_tokenizer_would_drop_it() -> None:
    """As Llama's tokenizer: words carry their space, and decoding drops the text's first one."""
    words = {"<unk>": 0, "▁The": 1, "▁capital": 2, "▁is": 3, "▁Paris": 4, "<0xE2>": 5, "<0x82>": 6, "<0xAC>": 7}
    backend = Tokenizer(models.BPE(vocab=words, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert tokenizer.decode([4]) == "Paris"
    detokenizer = Detokenizer(lambda tokens: str(tokenizer.decode(tokens)), [1, 2, 3])
    assert [detokenizer.push([token]) for token in (4, 5, 6, 7, 4)] == [" Paris", "", "", "€", " Paris"]


@pytest.mark.parametrize(
    ("stops", "pieces", "given", "stopped"),
    [
        (["STOP"], ["abST", "OPde"], "ab", True),
        (["STOP"], ["abS", "T", "O"], "abSTO", False),
        (["aab"], ["aa", "a", "b"], "a", True),
        (["ab", "b"], ["xab"], "x", True),
        (["abcd", "b"], ["ab", "cd"], "a", True),
        (["abcd", "b"], ["abcd"], "a", True),
        (["\n\n"], ["x\n", "y\n\nz"], "x\ny", True),
        ([], ["abc"], "abc", False),
    ],
)
def test_stop_strings_cut_exactly(stops: list[str], pieces: list[str], given: str, stopped: bool) -> None:
    cutter, passed = StopStrings(stops), ""
    for piece in pieces:
        text, hit = cutter.push(piece)
        passed += text
        if hit:
            break
    assert (passed + ("" if hit else cutter.flush()), hit) == (given, stopped)


@settings(deadline=None)
@given(
    text=st.text("ab", max_size=12), stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), data=st.data()
)
def test_stop_strings_do_not_depend_on_how_the_text_is_cut(text: str, stops: list[str], data: st.DataObject) -> None:
    def run(pieces: list[str]) -> tuple[str, bool]:
        cutter, passed = StopStrings(stops), ""
        for piece in pieces:
            out, hit = cutter.push(piece)
            passed += out
            assert text.startswith(passed)
            if hit:
                return passed, True
        return passed + cutter.flush(), False

    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    first_end = min(ends, default=None)
    expected = (
        text if first_end is None else text[: min(first_end - len(s) for s in stops if text[:first_end].endswith(s))]
    )
    edges = sorted(data.draw(st.sets(st.integers(0, len(text)))) | {0, len(text)})
    for pieces in (list(text), [text], [text[a:b] for a, b in pairwise(edges)]):
        assert run(pieces) == (expected, first_end is not None)


def chunk(tokens: list[int], start: int, finish: FinishReason | None) -> TokenChunk:
    zeros = np.zeros(len(tokens), dtype=np.int32)
    logprobs = np.array([logprob(start + place) for place in range(len(tokens))], dtype=np.float32)
    return TokenChunk(np.array(tokens, dtype=np.int32), logprobs, zeros, zeros, finish)


def run(pieces: list[list[int]], stop: list[str], finish: FinishReason, logprobs: bool = True) -> list[TextDelta]:
    stream = TextStream(BYTES, np.array(ids("p"), dtype=np.int32), stop, logprobs=logprobs)
    deltas, start = [], 0
    for place, piece in enumerate(pieces):
        deltas.append(stream.push(chunk(piece, start, finish if place == len(pieces) - 1 else None)))
        start += len(piece)
        if deltas[-1].finish_reason is not None:
            break
    return deltas


def test_stop_token_is_left_out_of_the_text_but_has_a_log_prob() -> None:
    (delta,) = run([ids("hé", EOS)], [], FinishReason.STOP)
    assert (delta.text, delta.sampled, delta.finish_reason) == ("hé", 4, "stop")
    assert [(token.text, token.offset, token.logprob) for token in delta.tokens] == [
        ("h", 0, -0.125),
        ("", 1, -0.25),
        ("é", 1, -0.375),
        ("<eos>", 2, -0.5),
    ]


def test_stop_token_that_is_plain_text_is_left_out_too() -> None:
    (delta,) = run([ids("ab\n")], [], FinishReason.STOP)
    assert delta.text == "ab"


def test_response_cut_off_by_length_keeps_its_last_token_and_half_a_character() -> None:
    (delta,) = run([[*ids("a"), 0xF0, 0x9F]], [], FinishReason.LENGTH)
    assert (delta.text, delta.sampled, delta.finish_reason) == ("a\ufffd", 3, "length")
    assert [token.text for token in delta.tokens] == ["a", "", "\ufffd"]


def test_stop_string_drops_its_tokens_and_counts_them() -> None:
    deltas = run([[byte] for byte in ids("abXYcd")], ["XY"], FinishReason.LENGTH)
    assert "".join(delta.text for delta in deltas) == "ab"
    assert sum(delta.sampled for delta in deltas) == 4
    assert [token.text for delta in deltas for token in delta.tokens] == ["a", "b"]
    assert deltas[-1].finish_reason == "stop"
    assert run([ids("abXYcd")], ["XY"], FinishReason.LENGTH) == [
        TextDelta("ab", tuple(token for delta in deltas for token in delta.tokens), 4, "stop")
    ]


@settings(deadline=None)
@given(text=st.text("aXé😀", max_size=12), stopped=st.booleans(), data=st.data())
def test_text_and_tokens_do_not_depend_on_chunks(text: str, stopped: bool, data: st.DataObject) -> None:
    tokens = ids(text, *([EOS] if stopped else []))
    finish = FinishReason.STOP if stopped else FinishReason.LENGTH
    stop = data.draw(st.sampled_from([[], ["XX"], ["aX", "é😀"]]))

    def whole(pieces: list[list[int]], logprobs: bool) -> tuple[object, ...]:
        deltas = run(pieces or [[]], stop, finish, logprobs)
        joined = "".join(delta.text for delta in deltas)
        listed = [token for delta in deltas for token in delta.tokens]
        given = 0
        for delta in deltas:  # a token is listed no earlier than its text, and every text has its tokens
            given += len(delta.text)
            assert all(token.offset <= given for token in delta.tokens)
        return joined, listed, sum(delta.sampled for delta in deltas), deltas[-1].finish_reason

    expected = whole([[token] for token in tokens], True)
    assert whole(cut(data, tokens), True) == expected
    assert whole([tokens], False)[:1] == expected[:1]
    joined, listed = str(expected[0]), expected[1]
    assert isinstance(listed, list)
    if expected[3] == finish.value and joined == text:
        assert "".join(token.text for token in listed) == text + ("<eos>" if stopped else "")
