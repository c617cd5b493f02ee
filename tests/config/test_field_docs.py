"""What is said of a config key is the string under its field."""

from pydantic import Field

from headrace.config.base import Section
from headrace.config.field_docs import field_docs


class Plain(Section):
    """Of the section, not of a field."""

    size: int = 1
    """How large.

    In bytes.
    """
    silent: bool = False
    also: float = Field(default=0.5, alias="other")
    """Under its own name."""


class Extended(Plain):
    size: int = 2
    """How large it is here."""
    more: str = ""
    """And this."""


def test_each_field_has_the_string_under_it() -> None:
    assert field_docs(Plain) == {"size": "How large.\n\nIn bytes.", "also": "Under its own name."}


def test_those_of_what_it_extends_are_there_unless_said_anew() -> None:
    assert field_docs(Extended) == {**field_docs(Plain), "size": "How large it is here.", "more": "And this."}
