"""The text of a run's config."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from headrace.config.reading.config_text import in_yaml, values_of

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda text: "${" not in text)
_NUMBER_LIKE = st.from_regex(r"[-+]?[0-9_.]{1,4}([eE][-+]?[0-9]{1,2})?", fullmatch=True)
_WORDS = st.sampled_from(["yes", "No", "null", "~", "true", "2024-01-01", "0x1f", "0o7", "1:30", "nan", "-.inf", "???"])
_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), _TEXTS, _NUMBER_LIKE, _WORDS)
_KEYS = st.from_regex(r"[a-z_]{1,6}", fullmatch=True)
_CONFIGS = st.dictionaries(_KEYS, st.recursive(_SCALARS, lambda v: st.lists(v) | st.dictionaries(_KEYS, v)), max_size=4)


@settings(max_examples=30, deadline=None)
@given(_CONFIGS)
def test_whoever_reads_it_finds_the_same(values: dict[str, Any]) -> None:
    text = in_yaml(values)
    assert values_of(text) == values
    assert OmegaConf.to_container(OmegaConf.create(text)) == values


@pytest.mark.parametrize("text", ["1e3", "1E-6", "1_000", "12", "1.5", "inf"])
def test_a_text_that_looks_like_a_number_stays_a_text(text: str) -> None:
    assert values_of(in_yaml({"tag": text})) == {"tag": text}
    assert OmegaConf.to_container(OmegaConf.create(in_yaml({"tag": text}))) == {"tag": text}


def test_an_equal_list_at_two_places_is_written_twice() -> None:
    same = ["a"]
    assert in_yaml({"x": same, "z": same}) == "x:\n- a\nz:\n- a\n"
