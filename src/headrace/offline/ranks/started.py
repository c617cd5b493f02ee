"""Where the model of an offline trainer is: in this process, or with ranks: processes that this command starts,
or torchrun, or actors of Ray."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

from headrace.config import ConfigError
from headrace.config.values.hosts import is_loopback
from headrace.controller.planning.role_devices import role_device
from headrace.offline.model import ModelHere, OfflineModel
from headrace.offline.ranks.placement import in_cluster
from headrace.offline.trained.of_config import OfflineConfig, model_of
from headrace.runtime.apart import Apart
from headrace.runtime.process.joined import Joined, Joining
from headrace.runtime.process.processes import Processes


def check_world(config: OfflineConfig, joined: Joined | None) -> None:
    """Of the first rank. Raises ConfigError for a world of torchrun's that the layout does not match."""
    layout = config.trainer.layout
    if joined is None:
        return
    if config.runtime.kind == "ray":
        raise ConfigError(
            "runtime.kind is ray, and torchrun began this: one of them has the ranks; leave runtime.kind out, or run "
            "headrace without torchrun"
        )
    if joined.rank:
        raise ConfigError(
            f"this is rank {joined.rank} of {joined.world}, and another than the first has no run; under torchrun have "
            "the command itself: torchrun --nproc-per-node N -m headrace sft ..."
        )
    if joined.world != layout.ranks:
        raise ConfigError(
            f"trainer.layout is {layout.text}, of {layout.ranks} rank(s), and torchrun began {joined.world}; use "
            f"--nproc-per-node {layout.ranks}, or trainer.layout=d{joined.world} or another of {joined.world} ranks"
        )
    if joined.is_spread and is_loopback(config.runtime.host):
        raise ConfigError(
            f"torchrun began {joined.world} ranks, {joined.here} of them on this machine, and runtime.host is "
            f"{config.runtime.host}, where those of others do not find the first; set it to an address of this machine "
            f"that they reach, on a network of these machines alone, or use --nnodes 1 --nproc-per-node {joined.world}"
        )


def started(config: OfflineConfig, steps: int, folder: Path) -> OfflineModel:
    """The model, loaded; `steps`: of the whole run; `folder`: its output, for logs. Raises ConfigError, WorkerLost."""
    device = role_device(config, "trainer")
    layout, runtime = config.trainer.layout, config.runtime
    if layout.ranks == 1 and not layout.stage and runtime.kind == "inline":
        trained = model_of(config, device, steps)
        return ModelHere(trained, config.trainer.max_tokens_per_microbatch, runtime.stuck.limits)
    from headrace.offline.ranks.model_of_ranks import ModelOfRanks

    run, logs, joined = str(folder), folder / "logs", Joined.of()
    with ExitStack() as met:
        if runtime.kind == "ray":
            place: Apart = in_cluster(config, folder, logs)
        elif joined is not None:
            joining = met.enter_context(closing(Joining(folder, joined, runtime.host)))
            place = Processes(run, logs=logs, begin=joining.begin)
        else:
            place = Processes(run, logs=logs)
        return ModelOfRanks.start(config, str(device), steps, place, layout.ranks if joined is None else joined.here)
