"""Trackers of a training run, told apart by `type`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator

from headrace.config.base import Section
from headrace.config.values.name_or_function import tag_of

PROJECT = "headrace"
"""The project or experiment of a run that names none."""


class CsvTracker(Section):
    """Files of comma-separated values, a column for each metric: `batches.csv`, `evaluations.csv`, `parameters.csv` and
    `summary.csv`."""

    type: Literal["csv"] = "csv"
    folder: str | None = None
    """Where the files are; `trackers/csv` in the run's folder unless given."""


class TensorboardTracker(Section):
    """Event files for TensorBoard."""

    type: Literal["tensorboard"] = "tensorboard"
    folder: str | None = None
    """Where the event files are; `trackers/tensorboard` in the run's folder unless given."""


class WandbTracker(Section):
    """Weights & Biases. Its key comes from WANDB_API_KEY or `wandb login`, never from here."""

    type: Literal["wandb"] = "wandb"
    project: str | None = None
    """WANDB_PROJECT, or `headrace`, unless given."""
    entity: str | None = None
    """User or team."""
    name: str | None = None
    """Of the run; the name of the run's folder unless given."""
    group: str | None = None
    tags: tuple[str, ...] = ()
    mode: Literal["online", "offline"] | None = None
    """`offline` writes files for `wandb sync`. WANDB_MODE, or `online`, unless given."""


class MlflowTracker(Section):
    """MLflow, on a server or a database."""

    type: Literal["mlflow"] = "mlflow"
    uri: str | None = None
    """As `http://host:5000` or `sqlite:///mlflow.db`, without a password; MLFLOW_TRACKING_URI, or what MLflow takes by
    itself, unless given."""
    experiment: str = Field(default=PROJECT, min_length=1)
    name: str | None = None
    """Of the run; the name of the run's folder unless given."""

    @field_validator("uri")
    @classmethod
    def _has_no_password(cls, uri: str | None) -> str | None:
        try:
            password = None if uri is None else urlsplit(uri).password
        except ValueError:  # as of a port that is none, which MLflow tells better
            password = None
        if password is not None:
            raise ValueError(
                "a password is in it, and a config is kept with its run; give the whole address by "
                "MLFLOW_TRACKING_URI, or the password by MLFLOW_TRACKING_PASSWORD"
            )
        return uri


class TrackioTracker(Section):
    """Trackio, on this machine or in a Hugging Face Space."""

    type: Literal["trackio"] = "trackio"
    project: str = Field(default=PROJECT, min_length=1)
    name: str | None = None
    """Of the run; the name of the run's folder unless given. The run's id is added to it."""
    space: str | None = None
    """As `user/name`; the machine's own store (TRACKIO_DIR) unless given."""


TrackerSection: TypeAlias = CsvTracker | TensorboardTracker | WandbTracker | MlflowTracker | TrackioTracker
SECTIONS: Mapping[str, type[TrackerSection]] = {
    "tensorboard": TensorboardTracker,
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
    "trackio": TrackioTracker,
    "csv": CsvTracker,
}
_NAMES = ", ".join(SECTIONS)


def _known(name: str) -> str:
    if name not in SECTIONS:
        raise ValueError(f"{name!r} is no tracker; use {_NAMES}")
    return name


TrackerConfig = Annotated[
    Annotated[str, AfterValidator(_known), Tag("name")]
    | Annotated[TensorboardTracker, Tag("tensorboard")]
    | Annotated[WandbTracker, Tag("wandb")]
    | Annotated[MlflowTracker, Tag("mlflow")]
    | Annotated[TrackioTracker, Tag("trackio")]
    | Annotated[CsvTracker, Tag("csv")],
    Discriminator(
        tag_of,
        custom_error_type="not_a_tracker",
        custom_error_message=f"a tracker is a name, or a mapping with type: {_NAMES}",
    ),
]
"""An entry of `track`: a name, or one of the above."""


def sections(entries: tuple[TrackerConfig, ...]) -> tuple[TrackerSection, ...]:
    """A name as the section that it stands for."""
    return tuple(SECTIONS[entry]() if isinstance(entry, str) else entry for entry in entries)


def each_once(entries: tuple[TrackerConfig, ...]) -> tuple[TrackerConfig, ...]:
    """Raises ValueError where a tracker is named twice."""
    kinds = [section.type for section in sections(entries)]
    if twice := [kind for kind in dict.fromkeys(kinds) if kinds.count(kind) > 1]:
        raise ValueError(f"{twice[0]} is named more than once; a run has one of each")
    return entries
