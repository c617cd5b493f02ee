"""What rows may hold as messages and tools, and the one form in which templates get them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.experience.text.messages import as_messages, as_tools

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def test_content_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "3+4?"}]
    assert as_messages([{"role": "user", "content": parts}]) == [{"role": "user", "content": "What is 3+4?"}]


@pytest.mark.parametrize("kind", ["image_url", "image", "input_audio", "video"])
def test_another_part_is_refused_by_its_name(kind: str) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "look"}, {"type": kind, kind: "x"}]}
    with pytest.raises(ValueError) as caught:
        as_messages([{"role": "system", "content": "s"}, message])
    assert f"message 2 (of user) has a part of type {kind!r}, and Headrace trains on text; give parts" in str(
        caught.value
    )


@pytest.mark.parametrize("arguments", ['{"city": "Ulm", "days": 2}', {"city": "Ulm", "days": 2}])
@pytest.mark.parametrize("flat", [False, True])
def test_tool_calls_have_their_arguments_as_an_object(arguments: Any, flat: bool) -> None:
    function = {"name": "weather", "arguments": arguments}
    call = function if flat else {"type": "function", "id": "c1", "function": function}
    (message,) = as_messages([{"role": "assistant", "content": None, "tool_calls": [call], "name": None}])
    (told,) = message.pop("tool_calls")
    assert told["type"] == "function"
    assert told["function"] == {"name": "weather", "arguments": {"city": "Ulm", "days": 2}}
    assert told.get("id") == (None if flat else "c1")
    assert message == {"role": "assistant", "content": ""}, "null is no text, and a null key is none"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"content": "x"}, "message 1 is {'content': 'x'}; give {'role'"),
        ({"role": "user", "content": 3}, "(of user) has the content 3; give text"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "the part {'type': 'text', 'text': 1}"),
        ({"role": "assistant", "tool_calls": {}}, "has tool_calls {}; give a list"),
        ({"role": "assistant", "tool_calls": [{"id": "x"}]}, "has the tool call {'id': 'x'}; give"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{x"}]}, "which is not JSON"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": '{"x": NaN}'}]}, "which is not JSON"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": '{"x": 1e999}'}]}, "larger than any number"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": "[1]"}]}, "are [1]; give an object"),
    ],
)
def test_a_message_of_another_form_is_refused_with_the_mend(message: Any, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        as_messages([message])
    assert said in str(caught.value)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": st.text()},
            optional={"name": st.text(), "tool_call_id": st.none() | st.text()},
        ),
        min_size=1,
    )
)
def test_messages_in_that_form_stay_as_they_are(messages: list[dict[str, Any]]) -> None:
    once = as_messages(messages)
    assert as_messages(once) == once
    assert [message["content"] for message in once] == [message["content"] for message in messages]


def test_tools_are_a_list_of_schemas_or_its_json_text() -> None:
    assert as_tools([WEATHER]) == [WEATHER]
    assert as_tools('[{"name": "f", "parameters": {}}]') == [{"name": "f", "parameters": {}}]
    assert as_tools(None) is as_tools([]) is as_tools("[]") is as_tools("null") is None


@pytest.mark.parametrize("value", ["not JSON", {"name": "f"}, [3], [{"type": "function", "function": {}}], ["f"]])
def test_other_tools_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"; (give|correct)"):
        as_tools(value)
