"""Files in memory: the store works on them as on a disk's, and a power cut takes what was not synced."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_helpers import CONFIG, SHA

from headrace.store import RunReader, RunStore
from headrace.store.media.files import LOCAL, Files, write_whole
from headrace.store.media.memory_files import MemoryFiles, PowerCut

RUN = Path("/run")


def nothing(count: int) -> int:
    return 0


def everything(count: int) -> int:
    return count - 1


@pytest.fixture
def files() -> MemoryFiles:
    made = MemoryFiles()
    made.make_folder(RUN)
    made.sync(Path("/"))
    return made


def test_what_was_not_synced_is_lost_and_what_was_is_there(files: MemoryFiles) -> None:
    end = files.append(RUN / "a", fresh=True)
    end.write(b"one")
    end.sync()
    files.sync(RUN)
    end.write(b"two")
    files.write(RUN / "b", b"never synced")
    assert files.read(RUN / "a") == b"onetwo"
    left = files.after_power_cut(nothing)
    assert [path.name for path in left.inside(RUN)] == ["a"]
    assert left.read(RUN / "a") == b"one"
    left = files.after_power_cut(everything)
    assert left.read(RUN / "a") == b"onetwo"
    assert left.is_file(RUN / "b")


def test_a_name_that_was_not_synced_is_lost_with_its_bytes(files: MemoryFiles) -> None:
    end = files.append(RUN / "a", fresh=True)
    end.write(b"one")
    end.sync()
    assert list(files.after_power_cut(nothing).inside(RUN)) == []


def test_part_of_what_was_appended_may_be_left(files: MemoryFiles) -> None:
    write_whole(RUN / "a", b"0123", files)
    files.append(RUN / "a").write(b"4567")
    assert files.after_power_cut(lambda count: min(2, count - 1)).read(RUN / "a") == b"012345"


def test_names_change_in_their_order(files: MemoryFiles) -> None:
    write_whole(RUN / "a", b"old", files)
    files.write(RUN / "a.new", b"new")
    files.sync(RUN / "a.new")
    files.rename(RUN / "a.new", RUN / "a")
    assert files.after_power_cut(nothing).read(RUN / "a") == b"old"
    left = files.after_power_cut(lambda count: min(1, count - 1))
    assert left.read(RUN / "a") == b"old"
    assert left.is_file(RUN / "a.new")
    assert files.after_power_cut(everything).read(RUN / "a") == b"new"


def test_commits_after_the_last_durable_one_may_be_lost() -> None:
    files = MemoryFiles()
    store = RunStore.create(RUN, config_yaml=CONFIG, config_sha256=SHA, now=0.0, files=files)
    files.sync(Path("/"))
    files.sync(RUN)
    store.events.write(1.0, "first", {})
    with store._database.transaction(durable=True):
        store.events.write(2.0, "second", {})
    store.events.write(3.0, "third", {})
    with RunReader(RUN, files) as reader:
        assert [event.kind for event in reader.events.read()] == ["first", "second", "third"]
    for draw, kinds in ((everything, ["first", "second", "third"]), (nothing, ["first", "second"])):
        with RunReader(RUN, files.after_power_cut(draw)) as reader:
            assert [event.kind for event in reader.events.read()] == kinds


def test_a_transaction_that_was_open_leaves_nothing() -> None:
    left = -1

    def watch(operation: str, path: Path, what: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise PowerCut

    files = MemoryFiles(watch)
    store = RunStore.create(RUN, config_yaml=CONFIG, config_sha256=SHA, now=0.0, files=files)
    files.sync(Path("/"))
    files.sync(RUN)
    left = 3

    def write_two() -> None:
        with store.transaction():
            store.events.write(1.0, "first", {})
            store.events.write(2.0, "second", {})

    with pytest.raises(PowerCut):
        write_two()
    with RunReader(RUN, files.after_power_cut(everything)) as reader:
        assert reader.events.read() == []


def test_a_run_in_memory_is_held_by_one_and_given_free() -> None:
    files = MemoryFiles()
    store = RunStore.create(RUN, config_yaml=CONFIG, config_sha256=SHA, now=0.0, files=files)
    assert files.is_held(RUN)
    store.close()
    assert not files.is_held(RUN)
    RunStore.open(RUN, config_sha256=SHA, files=files).close()


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_both_kinds_of_files_answer_alike(kind: str, tmp_path: Path) -> None:
    files: Files = MemoryFiles() if kind == "memory" else LOCAL
    folder = tmp_path / "run"
    files.make_folder(folder / "deep")
    files.make_folder(folder / "deep")
    files.write(folder / "a", b"0123456789")
    assert (files.size(folder / "a"), files.read(folder / "a", 2, 3)) == (10, b"234")
    assert files.open(folder / "a").read(4) == b"0123"
    files.truncate(folder / "a", 4)
    end = files.append(folder / "a")
    end.write(b"x")
    end.close()
    assert files.read(folder / "a") == b"0123x"
    with pytest.raises(FileExistsError):
        files.append(folder / "a", fresh=True)
    with pytest.raises(FileNotFoundError):
        files.append(folder / "b")
    with pytest.raises(FileNotFoundError):
        files.read(folder / "b")
    files.link(folder / "best", "deep")
    assert (files.linked(folder / "best"), files.linked(folder / "a")) == ("deep", None)
    files.write(folder / "deep" / "c", b"")
    assert [path.relative_to(folder).as_posix() for path in files.below(folder)] == ["a", "best", "deep", "deep/c"]
    files.remove(folder / "deep")
    files.remove(folder / "deep")
    assert [path.name for path in files.inside(folder)] == ["a", "best"]
    assert list(files.inside(folder / "nowhere")) == []
