import math

import pytest

from headrace.algorithms.kl_controllers import AdaptiveKL, FixedKL


def test_fixed_stays() -> None:
    assert FixedKL(0.1).after(kl=50.0, samples=256).beta == 0.1


@pytest.mark.parametrize(
    ("kl", "beta"),
    [
        (6.0, 0.2),
        # 10 % above and below the target: a tenth of samples / horizon = 256 / 10000.
        (6.6, 0.2 * (1 + 0.1 * 0.0256)),
        (5.4, 0.2 * (1 - 0.1 * 0.0256)),
        # Limited to 20 %.
        (600.0, 0.2 * (1 + 0.2 * 0.0256)),
        (math.inf, 0.2 * (1 + 0.2 * 0.0256)),
        (0.0, 0.2 * (1 - 0.2 * 0.0256)),
        (-1.0, 0.2 * (1 - 0.2 * 0.0256)),
    ],
)
def test_adaptive_by_hand(kl: float, beta: float) -> None:
    controller = AdaptiveKL(beta=0.2, target=6.0, horizon=10_000)
    after = controller.after(kl, samples=256)
    assert after.beta == pytest.approx(beta, rel=1e-12)
    assert (after.target, after.horizon) == (6.0, 10_000)
    assert controller.beta == 0.2


def test_a_policy_that_drifts_with_a_weak_penalty_is_brought_to_the_target() -> None:
    controller = AdaptiveKL(beta=1.0, target=6.0, horizon=1_000)
    for _ in range(2_000):
        controller = controller.after(kl=3.0 / controller.beta, samples=100)
    assert controller.beta == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"beta": 0.0}, "beta is 0.0"), ({"target": -1.0}, "target is -1.0"), ({"horizon": 0}, "horizon is 0")],
)
def test_bad_options_are_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdaptiveKL(**{"beta": 0.1, "target": 6.0, "horizon": 100, **options})


def test_what_it_cannot_follow_is_named() -> None:
    controller = AdaptiveKL(beta=0.2, target=6.0, horizon=100)
    with pytest.raises(ValueError, match="not a number"):
        controller.after(math.nan, samples=1)
    with pytest.raises(ValueError, match="samples is 500"):
        controller.after(6.0, samples=500)
