"""The samples of a batch as trackers get them."""

from pathlib import Path

from headrace.observe.trackers.samples import samples_of
from headrace.store.rollouts import Rollout, Rollouts, Turn


def rollout(episode: int, reward: float | None, *turns: Turn, batch: int = 3) -> Rollout:
    status = "failed" if reward is None else "completed"
    return Rollout(batch, 1.0, (0, 0, 0), episode, 0, "p", status, None, reward, 0.5, 2, 1, turns, b"")


def test_the_best_come_first_and_those_without_a_reward_last(tmp_path: Path) -> None:
    assert samples_of(tmp_path, 3) == []
    writer = Rollouts(tmp_path)
    writer.write(
        [
            rollout(0, None),
            rollout(1, 0.25, Turn(False, "2+2="), Turn(True, "4"), Turn(False, " sure? "), Turn(True, "yes")),
            rollout(2, 0.75, Turn(True, "of no prompt")),
            rollout(3, 1.0, batch=4),
        ]
    )
    rows = samples_of(tmp_path, 3)
    assert [(row["prompt"], row["response"], row["reward"]) for row in rows] == [
        ("", "of no prompt", 0.75),
        ("2+2=", "4 sure? yes", 0.25),
        ("", "", None),
    ]
    writer.close()


def test_a_record_that_cannot_be_read_holds_nothing_up(tmp_path: Path) -> None:
    (tmp_path / "rollouts.db").write_bytes(b"no database" * 400)
    assert samples_of(tmp_path, 0) == []
