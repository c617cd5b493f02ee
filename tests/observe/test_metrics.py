"""The table of metrics: every number that is recorded has a row, and the page is what the table makes of it."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import observe_samples as samples
import pytest

from headrace.config.kinds import KINDS
from headrace.config.reading.explain import known_keys
from headrace.observe import alarms
from headrace.observe.metrics import ALL, BATCH, EPOCH, SUMMARY, TOTALS, Metric
from headrace.observe.record import BatchRecord, EpochRecord, Totals
from headrace.observe.summary import build_summary

DOCS = Path(__file__).parents[2] / "docs"
OPEN = (
    "busy",
    "devices",
    "wait_s",
    "trainer_s",
    "engines_s",
    "terms",
    "histogram",
    "dropped",
    "drop_words",
    "failed",
    "failure_words",
    "sets",
)
"""Fields of the summary whose names are those of what is counted."""


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_metrics", DOCS / "make_metrics.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and name not in OPEN:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name


@pytest.mark.parametrize(("rows", "record"), [(BATCH, BatchRecord), (EPOCH, EpochRecord), (TOTALS, Totals)])
def test_every_field_of_a_record_has_one_row(rows: tuple[Metric, ...], record: Any) -> None:
    assert sorted(row.name for row in rows) == sorted(field.name for field in fields(record))


def test_every_field_of_the_summary_has_one_row_in_its_order() -> None:
    assert [row.name for row in SUMMARY] == list(leaves(build_summary(samples.run())))


def test_every_rule_belongs_to_one_row_and_every_worry_has_its_mend() -> None:
    rules = {name for name, rule in vars(alarms).items() if callable(rule) and rule.__module__ == alarms.__name__}
    rules = {name for name in rules if not name.startswith("_") and name != "RunSoFar"}
    assert sorted(row.rule.__name__ for row in ALL if row.rule is not None) == sorted(rules)
    assert [row.name for row in ALL if bool(row.worry) != bool(row.act)] == []
    assert [row.name for row in ALL if row.rule is not None and not row.act] == []


def test_what_is_to_be_done_names_keys_that_exist() -> None:
    known = {key for kind in KINDS.values() for key in known_keys(kind)}
    fields = {row.name for row in ALL} | {"headrace inspect", "--resume", "max_tokens_per_microbatch", "zero_spread"}
    fields |= {"again: overdue"}
    for row in ALL:
        named = {name.split(":")[0] if "." in name else name for name in re.findall(r"`([^`]+)`", row.act)}
        assert named <= known | fields, row.name


def test_the_page_is_what_the_table_makes_of_it() -> None:
    assert (DOCS / "metrics.md").read_text() == maker().page(), "run `python docs/make_metrics.py`"


def test_the_page_has_every_row_and_marks_those_with_an_alarm() -> None:
    page = maker().page()
    assert [row.name for row in ALL if f"| `{row.name}` | {row.unit} |" not in page] == []
    assert page.count("| **") == sum(row.rule is not None for row in ALL) == 8
