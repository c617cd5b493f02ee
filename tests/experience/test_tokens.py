from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from chat_styles import byte_tokenizer
from rollout_helpers import EOS, char_tokenizer, ids
from text_tokenizers import prepending
from tokenizers import normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headrace.experience.text.tokens import TextCodec, stop_token_ids


def test_text_is_encoded_as_the_tokenizer_does_by_default() -> None:
    codec = TextCodec(char_tokenizer())
    assert codec.encode("3+4=").tolist() == ids("3+4=").tolist()
    assert codec.encode("3+4=").dtype == np.int32


def test_a_prompt_encoded_again_is_the_same_and_cannot_be_changed_by_an_episode() -> None:
    codec = TextCodec(char_tokenizer(chat=True))
    message = [{"role": "user", "content": "ab"}]
    for content in ("ab", "ab", message, message, "[user]ab[assistant]", "ab"):
        encoded = codec.encode(content)
        assert encoded.tolist() == ids("ab" if content == "ab" else "[user]ab[assistant]").tolist()
        with pytest.raises(ValueError, match="read-only"):
            encoded[0] = 9


def test_messages_changed_in_place_are_encoded_anew() -> None:
    codec = TextCodec(char_tokenizer(chat=True))
    messages = [{"role": "user", "content": "a"}]
    codec.encode(messages)
    messages[0]["content"] = "b"
    assert codec.encode(messages).tolist() == ids("[user]b[assistant]").tolist()


@pytest.mark.parametrize(
    ("one", "other"),
    [({"x": 1}, {"x": 1.0}), ({"x": 1}, {"x": True}), ({"x": 0.0}, {"x": -0.0}), ({"x": 1, "y": 2}, {"y": 2, "x": 1})],
)
def test_what_python_takes_for_equal_and_a_template_writes_otherwise_is_encoded_anew(one: Any, other: Any) -> None:
    tokenizer = char_tokenizer(chat=True)
    tokenizer.chat_template = "{{ messages[0]['x'] | tojson }}{{ tools | tojson }}"
    codec = TextCodec(tokenizer)
    for each in (one, other, other):
        assert codec.encode([{"role": "user", "x": [each]}]).tolist() == ids(f"[{json.dumps(each)}]null").tolist()
    for tool in (one, other, other):
        encoded = codec.encode([{"role": "user", "x": 0}], [tool])
        assert encoded.tolist() == ids(f"0[{json.dumps(tool)}]").tolist()


def test_special_tokens_of_the_tokenizer_are_added_once() -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = char_tokenizer(chat=True)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<eos> $A", special_tokens=[("<eos>", EOS)])
    codec = TextCodec(tokenizer)
    assert codec.encode("ab").tolist() == [EOS, *ids("ab")]
    assert codec.encode([{"role": "user", "content": "ab"}]).tolist() == ids("[user]ab[assistant]").tolist()
    assert codec.encode_observation("ab", chat=False).tolist() == ids("ab").tolist()


def test_messages_are_rendered_up_to_the_turn_of_the_policy() -> None:
    codec = TextCodec(char_tokenizer(chat=True))
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    assert codec.encode(messages).tolist() == ids("[system]s[user]hi[assistant]").tolist()


def test_messages_without_a_chat_template_are_refused_with_the_mend() -> None:
    with pytest.raises(ValueError, match=r"no chat template; give prompts as text"):
        TextCodec(char_tokenizer()).encode([{"role": "user", "content": "hi"}])


def test_a_chat_template_that_refuses_is_told_with_its_words() -> None:
    tokenizer = char_tokenizer(chat=True)
    tokenizer.chat_template = "{{ raise_exception('no system here') }}"
    with pytest.raises(ValueError, match=r"chat template refuses the messages: TemplateError: no system here; give"):
        TextCodec(tokenizer).encode([{"role": "system", "content": "hi"}])


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="no tokens"):
        TextCodec(char_tokenizer()).encode("")


def test_an_observation_in_a_chat_brings_the_closing_token_only_if_the_policy_did_not() -> None:
    codec = TextCodec(char_tokenizer(chat=True))
    turn = ids("[user]ok[assistant]").tolist()
    assert codec.encode_observation("ok", chat=True, last_token=EOS).tolist() == turn
    assert codec.encode_observation("ok", chat=True, last_token=int(ids("x")[0])).tolist() == [EOS, *turn]
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "bx"},
        {"role": "user", "content": "ok"},
    ]
    closing = {EOS, int(ids("x")[0])}
    assert codec.encode_after(messages, 1, EOS, closing).tolist() == turn
    assert codec.encode_after(messages, 1, int(ids("x")[0]), closing).tolist() == [EOS, *turn], "a stop of the user's"


@pytest.mark.parametrize(
    ("close", "after"),
    [
        ("' <|im_end|>'", "[ok]"),
        ("'\\n\\n<|im_end|>\\n'", "\n[ok]"),
        ("' '", " [ok]"),
        ("'.<|im_end|>'", ".<|im_end|>[ok]"),
    ],
)
@pytest.mark.parametrize("ended_by", ["<|im_end|>", "<|eot_id|>"])
def test_white_space_before_the_templates_closing_token_goes_with_it(close: str, after: str, ended_by: str) -> None:
    """As Llama 2 and Vicuna have it: a turn that the policy has closed is closed once. A user's text that ends turns,
    here a space, closes none."""
    tokenizer = byte_tokenizer(
        "{% for m in messages %}{% if m.role == 'user' %}[{{ m.content }}]{% else %}{{ m.content + CLOSE }}{% endif %}"
        "{% endfor %}".replace("CLOSE", close)
    )
    codec = TextCodec(tokenizer)
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "so"},
        {"role": "user", "content": "ok"},
    ]
    space, end, other = (tokenizer.convert_tokens_to_ids(name) for name in ("Ġ", "<|im_end|>", ended_by))
    stops = {space, end, other}
    assert codec.decode(codec.encode_after(messages, 1, other, stops), keep_special_tokens=True) == after
    cut_off = codec.encode_observation("ok", chat=True, last_token=int(codec.encode_text("o")[0]))
    assert cut_off.tolist().count(end) == ("<|im_end|>" in close)
    by_space = codec.encode_after(messages, 1, space, stops).tolist()
    assert by_space.count(end) == ("<|im_end|>" in close)


def byte_level(*, add_prefix_space: bool) -> PreTrainedTokenizerFast:
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    return tokenizer


of_each_kind = pytest.mark.parametrize(
    "tokenizer",
    [
        prepending(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])),
        prepending(
            normalizers.Sequence(
                [normalizers.Strip(right=False), normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
            )
        ),
        prepending(pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
        prepending(pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="always")),
        byte_level(add_prefix_space=True),
        byte_level(add_prefix_space=False),
    ],
    ids=["normalizer", "strips", "first", "always", "bytes with a space", "bytes"],
)


@of_each_kind
@pytest.mark.parametrize("text", ["56", " 56", "  a", "a but", "ut", "\n", "\nb", "", "é"])
def test_text_in_the_middle_of_something_gets_no_space_that_nobody_wrote(
    tokenizer: PreTrainedTokenizerFast, text: str
) -> None:
    """By hand: `12` and then `56` is what `1256` is."""
    codec = TextCodec(tokenizer)
    for ids_after in (codec.encode_text(text), codec.encode_observation(text, chat=False)):
        assert [*codec.encode("12"), *ids_after] == codec.encode("12" + text).tolist()


@of_each_kind
def test_a_turn_in_plain_words_gets_no_space_that_the_template_does_not_write(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    tokenizer.chat_template = "{% for m in messages %}a{{ m.content }}b{% endfor %}a"
    codec = TextCodec(tokenizer)
    before = codec.encode([{"role": "user", "content": "1"}])
    added = codec.encode_observation("3", chat=True)
    assert [*before, *codec.encode_text("2"), *added] == codec.encode("a1ba2ba3ba").tolist()


def test_turns_appended_equal_the_whole_chat_rendered_at_once() -> None:
    codec = TextCodec(char_tokenizer(chat=True))
    first = [{"role": "user", "content": "one"}]
    appended = [
        *codec.encode(first),
        *ids("two"),
        EOS,
        *codec.encode_observation("three", chat=True, last_token=EOS),
    ]
    whole = [*first, {"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}]
    assert appended == codec.encode(whole).tolist()


OPENED_ONCE = (
    "{% set ns = namespace(first=true) %}{% for m in messages %}{% if m.tool_calls %}"
    "{{ m.content + '<call>' + m.tool_calls[0].function.name + '<|im_end|>' }}{% set ns.first = true %}"
    "{% elif m.role == 'tool' %}{{ ('<outs>' if ns.first else '') + '<out>' + m.content }}{% set ns.first = false %}"
    "{% else %}{{ m.role + ':' + m.content + '<|im_end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
"""As DeepSeek R1's: what opens results comes once after each call."""
NAMED = (
    "{% for m in messages %}{% if m.role == 'tool' %}{% set calls = messages[loop.index0 - 1].tool_calls or [] %}"
    "{{ '<' + (calls[0].function.name if calls else '?') + '>' + m.content }}"
    "{% else %}{{ m.role + ':' + m.content + '<|im_end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
"""A result by the name of what was called."""


@pytest.mark.parametrize("template", [OPENED_ONCE, NAMED])
def test_what_a_template_shows_of_a_call_after_it_is_shown(template: str) -> None:
    tokenizer = byte_tokenizer(template)
    codec, end = TextCodec(tokenizer), tokenizer.convert_tokens_to_ids("<|im_end|>")
    messages: list[dict[str, Any]] = [{"role": "user", "content": "a"}]
    for number in range(3):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": {"key": number}}}
        messages += [
            {"role": "assistant", "content": "b", "tool_calls": [call]},
            {"role": "tool", "content": str(number), "tool_call_id": f"c{number}"},
        ]
    for place in (1, 3, 5):
        seen, whole = messages[: place + 1], messages[: place + 2]
        after = codec.decode(codec.encode_after(whole, place, end, {end}), keep_special_tokens=True)
        assert codec.template.render(seen, asks=False) + after == codec.template.render(whole)


def test_decode_leaves_special_tokens_out() -> None:
    assert TextCodec(char_tokenizer()).decode([*ids("a b"), EOS]) == "a b"


def test_stop_ids_are_those_of_tokenizer_generation_config_and_user() -> None:
    tokenizer = char_tokenizer()
    assert stop_token_ids(tokenizer, None) == (1,)
    assert stop_token_ids(tokenizer, 9, (4,)) == (1, 4, 9)
    assert stop_token_ids(tokenizer, [9, 1]) == (1, 9)
