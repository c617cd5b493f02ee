"""The package that each tracker needs, and the extra that brings it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from headrace.config.errors import ConfigError
from headrace.config.track import TrackerSection

PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "trackio": "trackio"}
"""By the tracker's type, which is the name of the extra too. The rest need none."""


def check_packages(trackers: Sequence[TrackerSection]) -> None:
    """Raises ConfigError that names the extra. Imports nothing."""
    for tracker in trackers:
        package = PACKAGES.get(tracker.type)
        if package is not None and find_spec(package) is None:
            raise ConfigError(
                f"track has {tracker.type}, and the package {package} is not installed: pip install "
                f"'headrace[{tracker.type}]', or remove it from track"
            )
