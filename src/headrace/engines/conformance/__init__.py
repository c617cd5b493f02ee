"""What any engine has to keep, as checks that any engine can be put to: see docs/adding/engine.md.

    for check in CHECKS:
        await check(subject)
    await a_death_is_told(subject, kill)

One that sleeps is put to `who_sleeps_samples_nothing_and_goes_on` and `who_is_sent_away_goes_on_elsewhere` as well.

A check raises NotConforming, which says what was wrong with which token. It asks the engine for everything that it
judges, and knows nothing of how it works; what is right is told by the subject's own model, `logprobs`.
"""

from __future__ import annotations

from headrace.engines.conformance.checks import (
    CHECKS,
    Check,
    a_bad_request_fails_alone,
    a_death_is_told,
    a_full_engine_takes_new_weights,
    a_stop_token_ends_and_is_kept,
    an_aborted_request_ends,
    an_aborted_request_that_waits_ends,
    new_weights_are_used_and_told,
    no_token_is_older_than_was_asked_for,
    nothing_is_found_of_old_weights,
    tokens_are_the_models,
    truncation_comes_with_its_kept_sets,
    wrong_weights_are_refused,
)
from headrace.engines.conformance.sleep import (
    who_is_sent_away_goes_on_elsewhere,
    who_sleeps_samples_nothing_and_goes_on,
)
from headrace.engines.conformance.subject import NotConforming, Subject

__all__ = [
    "CHECKS",
    "Check",
    "NotConforming",
    "Subject",
    "a_bad_request_fails_alone",
    "a_death_is_told",
    "a_full_engine_takes_new_weights",
    "a_stop_token_ends_and_is_kept",
    "an_aborted_request_ends",
    "an_aborted_request_that_waits_ends",
    "new_weights_are_used_and_told",
    "no_token_is_older_than_was_asked_for",
    "nothing_is_found_of_old_weights",
    "tokens_are_the_models",
    "truncation_comes_with_its_kept_sets",
    "who_is_sent_away_goes_on_elsewhere",
    "who_sleeps_samples_nothing_and_goes_on",
    "wrong_weights_are_refused",
]
