"""`headrace plot` as a user runs it: a real run, what became of others, and what it refuses."""

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import observe_samples as samples
import pytest
from controller_jobs import make_job, run
from plot_reading import Picture

from headrace.cli.main import main
from headrace.config import dump_config
from headrace.store import RunStore

Captured = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of four batches, evaluated before, between and after."""
    folder = tmp_path_factory.mktemp("job")
    config = make_job(folder, trainer__batches=4, evaluation__every=2)
    code, out = run("train", str(config), "--dir", str(folder / "run"), "--plain")
    assert code == 0, out
    return folder / "run"


def begin(path: Path, **options: Any) -> RunStore:
    return RunStore.create(path, config_yaml=dump_config(samples.config(**options)), config_sha256="c0ffee", now=1.0)


def record(store: RunStore, number: int, branch: int = 0, **changes: Any) -> None:
    """The batch that made version `number`."""
    store.checkpoints.record_version(branch, number, 0.0)
    store.metrics.write(branch, number, 0.0, samples.batch(number - 1, branch=branch, **changes).to_json())


@pytest.mark.slow
def test_the_values_drawn_are_those_of_the_database(trained: Path, tmp_path: Path, capsys: Captured) -> None:
    out = tmp_path / "curves.svg"
    assert main(["plot", str(trained), "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    picture = Picture(out.read_bytes())
    with closing(sqlite3.connect(trained / "run.db")) as database:
        batches = [
            (number, json.loads(text))
            for number, text in database.execute(
                "SELECT number, record FROM metrics WHERE kind = 'batch' ORDER BY number"
            )
        ]
        evaluations = [
            (number, json.loads(text)["reward_mean"])
            for number, text in database.execute(
                "SELECT number, record FROM metrics WHERE kind = 'eval' ORDER BY number"
            )
        ]
    assert [number for number, _ in batches] == [1, 2, 3, 4]
    assert [number for number, _ in evaluations] == [0, 2, 4]
    for panel, field in (
        ("reward", "reward_mean"),
        ("response length", "response_tokens_mean"),
        ("entropy", "entropy"),
        ("gradient norm", "grad_norm"),
    ):
        (line,) = picture.values(panel)
        largest = max(abs(record[field]) for _, record in batches)
        assert [x for x, _ in line] == pytest.approx([1, 2, 3, 4], abs=0.01)
        assert [y for _, y in line] == pytest.approx([record[field] for _, record in batches], abs=2e-3 * largest)
    (line,) = picture.values("evaluation")
    assert line == [pytest.approx(pair, abs=0.01) for pair in evaluations]

    # The trainer's wait goes by the name that the record has.
    waited = [record["totals"]["wait_s"]["actor: rows of the batch"] for _, record in batches]
    elapsed = [record["totals"]["elapsed_s"] for _, record in batches]
    shares = [100 * (waited[at] - waited[at - 1]) / (elapsed[at] - elapsed[at - 1]) for at in (1, 2, 3)]
    (line,) = picture.values("trainer waits")
    assert [y for _, y in line][1:] == pytest.approx(shares, abs=0.5)


def test_pages_pictures_and_time(trained: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["plot", str(trained), "-o", str(tmp_path / "a.html"), "--by", "time", "--smooth", "2"]) == 0
    page = (tmp_path / "a.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "smoothed: mean of the last 2 batches" in page
    assert "of running" in page
    assert main(["plot", str(trained), "-o", str(tmp_path / "A.PNG")]) == 0
    assert (tmp_path / "A.PNG").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["A.PNG", "a.html"]


def test_a_picture_that_cannot_be_written_takes_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = begin(tmp_path / "run")
    record(store, 1)
    store.close()
    assert main(["plot", str(tmp_path / "run"), "-o", "/proc/x.svg"]) == 1
    assert capsys.readouterr().err.startswith("headrace: cannot write /proc/x.svg: ")


def test_seeds_in_folders_of_one_name(tmp_path: Path) -> None:
    for seed in (1, 2):
        store = begin(tmp_path / f"seed-{seed}" / "run", seed=seed)
        record(store, 1, reward_mean=0.25 * seed)
        record(store, 2, reward_mean=0.5 * seed)
        store.set_status("finished")
        store.close()
    folders = [str(tmp_path / f"seed-{seed}" / "run") for seed in (1, 2)]
    assert main(["plot", *folders, "-o", str(tmp_path / "a.svg")]) == 0
    picture = Picture((tmp_path / "a.svg").read_bytes())
    assert {"seed-1/run, seed-2/run", "mean of 2 runs (seeds 1, 2); band: lowest to highest"} <= set(picture.words)
    (line,) = picture.values("reward")
    assert [y for _, y in line] == pytest.approx([0.375, 0.75], abs=2e-3)
    assert main(["plot", *folders, "--each", "-o", str(tmp_path / "a.svg")]) == 0
    assert len(Picture((tmp_path / "a.svg").read_bytes()).values("reward")) == 2


def test_a_run_that_goes_and_one_that_was_resumed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    store = begin(path)
    for number in (1, 2, 3):
        record(store, number, reward_mean=0.1 * number)
    assert main(["plot", str(path), "-o", str(tmp_path / "a.svg")]) == 0
    assert "running at v3" in Picture((tmp_path / "a.svg").read_bytes()).words

    prepared = store.checkpoints.prepare(2, lambda folder: (folder / "w").write_bytes(b"w"))
    store.checkpoints.commit(prepared, branch=0, number=2, state={})
    store.close()
    store = RunStore.open(path, config_sha256="c0ffee")
    assert store.checkpoints.restore().branch == 1
    record(store, 3, branch=1, reward_mean=0.9)  # in place of what a restore took back
    store.close()
    assert main(["plot", str(path), "-o", str(tmp_path / "a.svg")]) == 0
    picture = Picture((tmp_path / "a.svg").read_bytes())
    (line,) = picture.values("reward")
    assert [y for _, y in line] == pytest.approx([0.1, 0.2, 0.9], abs=5e-3)
    assert "killed at v3" in picture.words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "-o", "a.pdf"], "-o a.pdf: .pdf is no picture; end it in .svg, .html or .png"),
        (["run", "-o", "a"], "-o a: it has no ending that says what to draw; end it in .svg, .html or .png"),
        (["run", "-o", "no/a.svg"], "-o no/a.svg: there is no folder no; make it, or give another path"),
        (["run", "-o", "file/a.svg"], "-o file/a.svg: there is no folder file; make it, or give another path"),
        (["run", "-o", "run"], "-o run is a folder; give a file, as run/plot.svg"),
        (["gone", "-o", "a.svg"], "gone holds no run (there is no run.db); check the path"),
        (["run", "gone", "-o", "a.svg"], "gone holds no run (there is no run.db); check the path"),
        (["run", "./run", "-o", "a.svg"], "run is given twice; give each run once"),
        (["empty", "-o", "a.svg"], "empty has trained no batch yet: there is nothing to plot; its status is stopped"),
        (
            ["sft", "-o", "a.svg"],
            "sft holds no run (there is no run.db); check the path",
        ),
        (["run", "-o", "a.svg", "--smooth", "0"], "--smooth is 0; give a number of batches, 1 or more"),
    ],
)
def test_what_it_refuses_takes_a_line(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    store = begin(Path("run"))
    record(store, 1)
    store.close()
    store = begin(Path("empty"))
    store.set_status("stopped")
    store.close()
    Path("sft", "model").mkdir(parents=True)
    Path("file").touch()
    assert main(["plot", *arguments]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"headrace: {words}\n")
    assert not Path("a.svg").exists()


def test_a_png_without_matplotlib_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr("headrace.api.picture.find_spec", lambda name: None)
    assert main(["plot", str(tmp_path), "-o", str(tmp_path / "a.png")]) == 2
    assert capsys.readouterr().err == (
        f"headrace: -o {tmp_path}/a.png: a PNG needs matplotlib: pip install 'headrace[plot]'; .svg and .html need "
        "nothing more\n"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path, capsys: Captured) -> None:
    store = begin(tmp_path / "run")
    record(store, 1)
    store.close()
    (tmp_path / "shut").mkdir(mode=0o500)
    assert main(["plot", str(tmp_path / "run"), "-o", str(tmp_path / "shut" / "a.svg")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_an_output_that_cannot_be_written_leaves_nothing(trained: Path, capsys: Captured) -> None:
    assert main(["plot", str(trained), "-o", "/proc/a.svg"]) != 0
    captured = capsys.readouterr()
    assert captured.err.startswith("headrace: ")
    assert captured.err.count("\n") == 1
    assert "/proc/a.svg" in captured.err


def test_a_folder_with_a_name_that_is_no_text(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/run-\xff-<script>"))
    store = begin(path)
    record(store, 1)
    store.close()
    for name in ("a.svg", "a.html"):
        assert main(["plot", str(path), "-o", str(tmp_path / name)]) == 0
    assert "run-<U+DCFF>-<script>" in Picture((tmp_path / "a.svg").read_bytes()).words
    assert "run-&lt;U+DCFF&gt;-&lt;script&gt;" in (tmp_path / "a.html").read_text()
    shutil.rmtree(path)
