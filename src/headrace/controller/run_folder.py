"""The folder of a run: opened, its beginning and end noted, its summary written."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from headrace.config import ConfigError, config_sha256, dump_config
from headrace.config.values.paths import path_of
from headrace.controller.begin import Begin
from headrace.controller.planning.plan import Plan
from headrace.observe.failure import FAILED, words_of
from headrace.observe.run_record import RunRecord, RunWatcher
from headrace.observe.summary import build_summary, write_summary
from headrace.store import Restored, RunReader, RunStore, StoreError
from headrace.store.media.files import LOCAL, Files
from headrace.store.origin import take_origin, taken_origin

SUMMARY = "summary.json"
Status = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended."""

    status: Status
    record: RunRecord


def open_store(
    plan: Plan,
    folder: Path,
    begin: Begin,
    now: float,
    tell: Callable[[str], None] = lambda line: None,
    files: Files = LOCAL,
) -> tuple[RunStore, Restored | None]:
    """The run's record, held by this process. `tell` is given each key of the config that a resumed run changes. Raises
    StoreErrors that name the folder and the mend."""
    digest, text = config_sha256(plan.config), dump_config(plan.config)
    keep, keep_journal = plan.config.checkpoint.keep, plan.config.keeps_journal
    if begin == "resume":
        store = RunStore.open(
            folder,
            config_sha256=digest,
            config_yaml=text,
            keep_checkpoints=keep,
            keep_journal=keep_journal,
            files=files,
        )
        try:
            store.claim_data(plan.prompts.contents())
            for change in store.changed:
                tell(str(change))
            restored = store.checkpoints.restore()
            store.set_status("running")  # before the config: a finished run of that config would be left as it is
            store.take_config(text, digest, now)
            return store, restored
        except BaseException:
            store.close()
            raise
    if begin == "fresh" and RunStore.is_erasable(folder, files):
        RunStore.erase(folder, files)
    created = RunStore.create(
        folder,
        config_yaml=text,
        config_sha256=digest,
        now=now,
        keep_checkpoints=keep,
        keep_journal=keep_journal,
        files=files,
    )
    try:
        created.claim_data(plan.prompts.contents())
    except BaseException:
        created.close()
        raise
    return created, None


def with_own_origin(plan: Plan, store: RunStore, now: float) -> Plan:
    """The plan of a run that holds what it begins from, whatever becomes of the source. Blocking."""
    if plan.origin is None:
        return plan
    own = taken_origin(store.path, plan.origin.name) or take_origin(plan.origin, store.path)
    data = {"run": own.name, "optimizer": plan.config.from_.optimizer, "critic": own.critic is not None}
    note_once(store, now, "began_from", data)
    return replace(plan, origin=own)


def refuse_to_erase(plan: Plan, folder: Path) -> None:
    """Raises ConfigError where the run would erase what it is to begin from."""
    sources = {
        "--from": None if plan.origin is None else plan.origin.path,
        "data.rollouts": None if plan.replay is None else path_of(plan.config.data.rollouts or ""),
    }
    for key, path in sources.items():
        if path is not None and path.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"{key} is {path}, in {folder}, which --fresh would erase; give another --dir")


def note_failure(store: RunStore, now: float, error: BaseException) -> None:
    """Why the run fails, for who comes later."""
    with suppress(StoreError, OSError):  # it may be the record that failed
        store.events.write(now, FAILED, {"message": words_of(error)})


def note_once(store: RunStore, now: float, kind: str, data: dict[str, Any]) -> None:
    """An event of how the run began, which a kill may have come before."""
    if all(event.kind != kind for event in store.events.read()):
        store.events.write(now, kind, data)


def ended_before(plan: Plan, folder: Path, files: Files) -> Ended | None:
    """The run in `folder`, if it is finished and of this config. Its summary is written if a kill came before that."""
    if not RunStore.exists(folder, files):
        return None
    with RunReader(folder, files) as reader:
        if reader.status().name != "finished" or reader.config_sha256 != config_sha256(plan.config):
            return None
        record = RunWatcher(reader).read()
    path, summary = folder / SUMMARY, build_summary(record)
    told = json.loads(files.read(path)) if files.is_file(path) else {}
    if any(told.get(name) != summary[name] for name in ("status", "version")):
        write_summary(path, summary, files)
    return Ended("finished", record)


def summarise(folder: Path, files: Files) -> RunRecord:
    with RunReader(folder, files) as reader:
        record = RunWatcher(reader).read()
    write_summary(folder / SUMMARY, build_summary(record), files)
    return record
