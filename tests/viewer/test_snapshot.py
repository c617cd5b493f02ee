import observe_samples as samples
import pytest

from headrace.store import Counts
from headrace.viewer.terminal.snapshot import WINDOW, take_snapshot


def test_rates_and_shares_are_of_the_recent_batches() -> None:
    """20 batches of a second each; the last 11 seconds are twice as fast, and the trainer waits for all of them."""
    batches = []
    for number in range(20):
        fast = max(number + 1 - 10, 0)
        batches.append(
            samples.batch(
                number,
                trained_tokens=160 if fast else 80,
                totals=samples.totals(
                    number + 1,
                    generated_tokens=100 * (number + 1) + 100 * fast,
                    train_s=0.0,
                    trainer_s={"trains": number + 1.0 - fast, "waits: generation": float(fast)},
                ),
            )
        )
    now = samples.totals(
        21, generated_tokens=2100 + 1100, train_s=0.0, trainer_s={"trains": 10.0, "waits: generation": 11.0}
    )
    snapshot = take_snapshot(samples.run(20, batches=tuple(batches), planned_batches=25, processes={0: now}))
    assert WINDOW == 10
    assert snapshot.generated_per_s == 200
    assert snapshot.trained_per_s == 160
    shares = {(share.side, share.what): share.share for share in snapshot.shares}
    assert shares == {
        ("trainer", "generation"): 1.0,
        ("engines", "computes"): pytest.approx(0.8),
        ("engines", "the trainer"): pytest.approx(0.2),
    }
    assert snapshot.eta_s == 5.0
    assert snapshot.progress == 0.8


def test_batches_of_an_earlier_process_are_outside_the_window() -> None:
    """Process 0 trained 20 batches in 20 s; process 1 has trained one, and has run for 2 s."""
    batches = (*(samples.batch(number) for number in range(20)), samples.batch(20, branch=1, totals=samples.totals(1)))
    snapshot = take_snapshot(
        samples.run(
            21,
            batches=batches,
            branch=1,
            planned_batches=30,
            processes={0: samples.totals(20), 1: samples.totals(2, generated_tokens=800)},
        )
    )
    assert snapshot.generated_per_s == 400
    assert snapshot.elapsed_s == 22
    assert snapshot.eta_s == 9


def test_a_single_slow_batch_does_not_move_the_eta() -> None:
    batches = tuple(samples.batch(number, step_s=60.0 if number == 4 else 1.0) for number in range(6))
    assert take_snapshot(samples.run(6, batches=batches)).eta_s == 4.0


def test_there_is_no_eta_once_the_run_has_ended_or_where_the_end_is_unknown() -> None:
    assert take_snapshot(samples.run(3, status="stopped")).eta_s is None
    assert take_snapshot(samples.run(3, planned_batches=None)).eta_s is None
    assert take_snapshot(samples.run(3, planned_batches=None)).progress is None


def test_queue_and_losses() -> None:
    snapshot = take_snapshot(
        samples.run(
            2,
            batches=(samples.batch(0, masked_tokens=3), samples.batch(1, masked_tokens=4, late_groups=1)),
            counts=Counts(issued=9, running=3, ready=2, trained=1, dropped={"zero_spread": 3}),
        )
    )
    assert (snapshot.running, snapshot.ready, snapshot.trained) == (3, 2, 1)
    assert snapshot.most_groups == 32 + samples.config().rollout.prompts_per_batch
    assert (snapshot.masked_tokens, snapshot.late_groups) == (7, 1)
    assert snapshot.staleness == {0: 120, 1: 40}
    assert snapshot.max_staleness == 2
    assert snapshot.dropped == {"zero_spread": 3}


@pytest.mark.parametrize("batches", [0, 1, 3])
def test_a_young_run(batches: int) -> None:
    snapshot = take_snapshot(samples.run(batches))
    assert len(snapshot.batches) == batches
    assert (snapshot.generated_per_s is None) == (batches == 0)
