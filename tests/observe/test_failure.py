"""Why a run failed: in few words, and only as long as it is so."""

from __future__ import annotations

import observe_samples as samples
import pytest

from headrace.config.errors import ConfigError
from headrace.observe.failure import error_of, words_of
from headrace.observe.summary import build_summary
from headrace.store import EventRow


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConfigError("no such file\n  give one"), "no such file give one"),
        (ValueError("a\n\n b\nc\nd\ne\nf"), "ValueError: a b c d e"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ConfigError(""), "ConfigError"),
        (ValueError("x" * 5000), "ValueError: " + "x" * 988 + "…"),
    ],
)
def test_the_first_lines_of_an_error_as_one(error: BaseException, words: str) -> None:
    assert words_of(error) == words


def test_only_the_last_process_of_a_run_that_failed_has_an_error() -> None:
    started = EventRow(1, 0.0, "started", {})
    failed = EventRow(2, 1.0, "failed", {"message": "boom"})
    assert error_of("failed", [started, failed]) == "boom"
    assert error_of("failed", [failed, EventRow(3, 2.0, "swap", {})]) == "boom"
    assert error_of("failed", [started, failed, started]) is None
    assert error_of("finished", [started, failed]) is None
    assert build_summary(samples.run(status="failed", events=(started, failed)))["error"] == "boom"
