"""What is drawn of which run: panels, seeds, bands, times, names."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import observe_samples as samples
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.observe.run_record import RunRecord
from headrace.observe.untrusted import visible_line
from headrace.viewer.plot.chart import Chart, Line, NotDrawable, make_chart
from headrace.viewer.plot.curves import curves, panels
from headrace.viewer.plot.points import Point, point
from headrace.viewer.plot.seeds import band, together
from headrace.viewer.plot.words import cut, distinct, width_of


def seed(number: int, *rewards: float, **options: Any) -> RunRecord:
    batches = tuple(samples.batch(place, reward_mean=reward) for place, reward in enumerate(rewards))
    config = samples.config(**{**options, "seed": number})
    return samples.run(len(batches), name=f"seed-{number}", config=config, batches=batches)


def lines(chart: Chart, key: str) -> tuple[Line, ...]:
    return next((plot.lines for plot in chart.plots if plot.panel.key == key), ())


def ys(run: RunRecord, key: str, name: str = "") -> list[float | None]:
    return [at.y for at in curves(run, panels([run]), "batch")[key].get(name, ())]


def test_the_panels_of_a_run_are_those_that_it_has_data_for() -> None:
    chart = make_chart([samples.run(3)], ["demo"])
    assert [plot.panel.key for plot in chart.plots] == [
        "reward",
        "length",
        "truncated",
        "staleness",
        "kl",
        "tokens",
        "waits",
        "idle",
        "grad_norm",
        "loss",
    ]


def test_what_else_was_recorded_has_its_panel() -> None:
    batches = tuple(
        samples.batch(
            number,
            entropy=0.5,
            reference_kl=0.1,
            critic_loss=0.2,
            kept_mass=0.9,
            reward_terms={"right": 0.5, "short": 0.1 * number},
            failed_samples={"timeout": 5},
            dropped_groups={"zero_spread": 2, "overlong": 1} if number else {},
            truncated_samples=4,
        )
        for number in range(3)
    )
    run = replace(
        samples.run(3), batches=batches, evaluations=(samples.evaluation(0, 0.25), samples.evaluation(2, 0.5))
    )
    keys = {plot.panel.key for plot in make_chart([run], ["demo"]).plots}
    assert {
        "evaluation",
        "entropy",
        "reference_kl",
        "critic_loss",
        "kept_mass",
        "failed",
        "dropped",
        "term:right",
        "term:short",
    } <= keys
    assert ys(run, "term:short") == pytest.approx([0, 0.1, 0.2])
    assert ys(run, "dropped") == [0, 3, 3]
    assert ys(run, "failed") == [25, 25, 25]  # 5 of the 20 samples that ended
    assert ys(run, "truncated") == [25, 25, 25]  # 4 of the 16 trained ones


def test_shares_and_rates_are_of_the_time_since_the_batch_before() -> None:
    run = samples.run(3)  # a second a batch: 100 tokens, engines compute 0.8 s, the trainer waits 0.4 s
    assert ys(run, "tokens") == pytest.approx([100, 100, 100])
    assert ys(run, "waits") == pytest.approx([40, 40, 40])
    assert ys(run, "idle") == pytest.approx([20, 20, 20])
    assert ys(run, "staleness", "mean") == [0.25, 0.25, 0.25]  # 20 of 80 tokens of age 1
    assert ys(run, "staleness", "max") == [1, 1, 1]


def test_engines_are_idle_for_the_mean_of_their_time() -> None:
    """Two compute for 0.5 s of each second and take weights for 0.1 s: what they have added up is 1.2 s."""
    spent_s = {"computes": 0.5, "swaps weights": 0.1, "other": 0.4}
    batches = tuple(
        samples.batch(
            number,
            totals=samples.totals(
                number + 1,
                generate_s=1.0 * (number + 1),
                swap_stall_s=0.2 * (number + 1),
                engines_s={name: seconds * (number + 1) for name, seconds in spent_s.items()},
            ),
        )
        for number in range(3)
    )
    assert ys(replace(samples.run(3), batches=batches), "idle") == pytest.approx([40, 40, 40])


def test_means_over_no_trained_tokens_say_nothing() -> None:
    batches = (
        samples.batch(0, trained_tokens=0, staleness={}, entropy=0.0, warm_up=True),
        samples.batch(1, entropy=0.3, grad_norm=math.nan),
    )
    run = replace(samples.run(2), batches=batches)
    assert ys(run, "entropy") == [None, 0.3]
    assert ys(run, "kl") == [None, 0.001]
    assert ys(run, "staleness", "mean") == [None, 0.25]
    assert ys(run, "grad_norm") == []  # no gradient of either can be drawn


def test_evaluations_stand_at_their_version() -> None:
    run = replace(samples.run(4), evaluations=tuple(samples.evaluation(at, 0.1 * at) for at in (0, 2, 4)))
    (line,) = lines(make_chart([run], ["demo"]), "evaluation")
    assert [(at.x, at.y) for at in line.curve] == [(0, 0), (2, 0.2), (4, 0.4)]
    (line,) = lines(make_chart([run], ["demo"], by="time"), "evaluation")
    assert [at.x for at in line.curve] == [0, 2, 4]  # a second a batch


def test_along_time_a_resumed_run_goes_on_where_its_last_process_ended() -> None:
    # Branch 0 ran 10 s and made versions 1 to 3, of which a restore took back the third.
    batches = (
        samples.batch(0, totals=samples.totals(2)),
        samples.batch(1, totals=samples.totals(4)),
        samples.batch(2, branch=1, totals=samples.totals(1)),
        samples.batch(3, branch=1, totals=samples.totals(3, generated_tokens=900)),
    )
    run = replace(samples.run(4), branch=1, batches=batches, processes={0: samples.totals(10), 1: samples.totals(3.5)})
    (line,) = lines(make_chart([run], ["demo"], by="time"), "reward")
    assert [at.x for at in line.curve] == [2, 4, 11, 13]
    assert ys(run, "tokens") == [100, 100, 100, 400]  # not since the other process


@pytest.mark.parametrize(
    ("seconds", "name", "unit"),
    [(100, "seconds", 1), (120, "minutes", 60), (7200, "hours", 3600), (200_000, "days", 86400)],
)
def test_time_has_the_unit_that_fits(seconds: float, name: str, unit: float) -> None:
    run = replace(samples.run(1), batches=(samples.batch(0, totals=samples.totals(seconds)),))
    chart = make_chart([run], ["demo"], by="time")
    assert (chart.x_name, chart.x_unit, chart.last) == (f"{name} of running", unit, seconds)


def test_seeds_of_one_config_are_a_mean_and_a_band() -> None:
    chart = make_chart([seed(1, 0.25, 0.5, 0.75), seed(2, 0.75, 1.0)], ["a", "b"])
    (line,) = lines(chart, "reward")
    assert line.curve == (Point(1, 0.5, 0.25, 0.75), Point(2, 0.75, 0.5, 1.0))  # as far as both go
    (entry,) = chart.entries
    assert (entry.name, entry.detail) == ("a, b", "mean of 2 runs (seeds 1, 2); band: lowest to highest")
    assert chart.notes == ("mean and band: where all seeds have a value",)


def test_seeds_that_were_told_to_be_apart_or_differ_in_more_are() -> None:
    runs = [seed(1, 0.25), seed(2, 0.75)]
    assert len(make_chart(runs, ["a", "b"], each=True).entries) == 2
    other = seed(3, 0.5, algorithm={"advantage": "mean_only"})
    assert together([runs[0], other, runs[1]]) == [[0, 2], [1]]
    # Where and how fast it ran, and how often it was evaluated, decide nothing.
    assert together([runs[0], seed(2, 0.5, evaluation={"every": 3}, runtime={"threads": 1})]) == [[0, 1]]
    lengths: tuple[dict[str, Any], ...] = ({"batches": 10}, {"batches": 20}, {"epochs": 3})
    assert together([seed(number, 0.5, trainer=length) for number, length in enumerate(lengths)]) == [[0, 1, 2]]
    falling = {"lr_schedule": {"kind": "cosine"}}  # whose rates follow from the length
    assert together([seed(number, 0.5, trainer=length | falling) for number, length in enumerate(lengths[:2])]) == [
        [0],
        [1],
    ]


def test_a_panel_that_one_seed_has_is_its_line() -> None:
    one, two = seed(1, 0.25, 0.5), seed(2, 0.75, 1.0)
    one = replace(one, evaluations=(samples.evaluation(0, 0.5), samples.evaluation(2, 1.0)))
    (line,) = lines(make_chart([one, two], ["a", "b"]), "evaluation")
    assert line.curve == (Point(0, 0.5), Point(2, 1.0))


def test_a_band_along_time_is_straight_between_the_points() -> None:
    one = (point(0, 0.0), point(2, 4.0), point(4, 0.0))
    two = (point(1, 1.0), point(3, 3.0))
    assert band([one, two], between=True) == (
        Point(1, 1.5, 1.0, 2.0),  # the first is halfway from 0 to 4
        Point(2, 3.0, 2.0, 4.0),
        Point(3, 2.5, 2.0, 3.0),
    )


@given(
    st.lists(st.lists(st.one_of(st.none(), st.floats(-1e100, 1e100)), min_size=1, max_size=8), min_size=2, max_size=5)
)
def test_the_mean_is_within_its_band(seeds: list[list[float | None]]) -> None:
    for between in (False, True):
        found = band([tuple(point(x, y) for x, y in enumerate(ys)) for ys in seeds], between=between)
        assert all(at.low <= at.y <= at.high for at in found)  # type: ignore[operator]


def test_seeds_that_share_no_time_are_refused_by_time() -> None:
    early, late = seed(1, 0.5), replace(seed(2, 0.5), batches=(samples.batch(0, totals=samples.totals(9)),))
    with pytest.raises(NotDrawable, match="no time at which all seeds have a value; give --by batch, or --each"):
        make_chart([early, late], ["a", "b"], by="time")
    assert make_chart([early, late], ["a", "b"], by="time", each=True).last == 9


def test_smoothing_is_stated_and_leaves_what_was_recorded() -> None:
    chart = make_chart([seed(1, 0.0, 0.5, 1.0)], ["a"], smooth=2)
    (line,) = lines(chart, "reward")
    assert [at.y for at in line.curve] == [0, 0.25, 0.75]
    assert [at.y for at in line.recorded] == [0, 0.5, 1]
    assert chart.notes == ("smoothed: mean of the last 2 batches, but for evaluations; faint: as recorded",)
    both = make_chart([seed(1, 0.0, 0.5, 1.0), seed(2, 1.0, 1.5, 2.0)], ["a", "b"], smooth=2)
    (line,) = lines(both, "reward")
    assert line.curve == (Point(1, 0.5, 0, 1), Point(2, 0.75, 0.25, 1.25), Point(3, 1.25, 0.75, 1.75))
    assert both.notes[0] == "smoothed: mean of the last 2 batches, seed by seed, but for evaluations"


def test_a_run_that_is_not_finished_says_so() -> None:
    entry = make_chart([samples.run(3)], ["demo"]).entries[0]
    assert (entry.name, entry.detail) == ("demo", "running at v3")
    assert make_chart([samples.run(3, status="finished")], ["demo"]).entries[0].detail == ""


def test_more_lines_than_colours_are_refused() -> None:
    runs = [seed(number, 0.5) for number in range(8)]
    assert len(make_chart(runs, list("abcdefgh")).entries) == 1
    with pytest.raises(NotDrawable, match="8 runs are more lines than can be told apart: give 7 at most"):
        make_chart(runs, list("abcdefgh"), each=True)


def test_names_are_as_short_as_tells_them_apart() -> None:
    assert distinct([Path("/r/one"), Path("/r/two")]) == ("one", "two")
    assert distinct([Path("/a/run"), Path("/b/run"), Path("/c/other")]) == ("a/run", "b/run", "other")
    assert distinct([Path("/a/x/run"), Path("/b/x/run")]) == ("a/x/run", "b/x/run")
    assert distinct([Path("/")]) == ("/",)


def test_names_are_shown_without_what_steers_a_display() -> None:
    assert visible_line("a\x1b[31mb\u202ec\ud800d\x00\né漢") == "a␛[31mb<U+202E>c<U+D800>d␀␊é漢"


@given(st.text(max_size=60), st.floats(20, 300))
def test_what_was_cut_fits(text: str, width: float) -> None:
    short = cut(text, 12, width)
    assert width_of(short, 12) <= width
    assert short == text or "…" in short
