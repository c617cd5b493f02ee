"""The wheel and the sdist, in an environment that has nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MINUTES = 60.0


def call(*words: object, cwd: Path, minutes: float = 5.0) -> str:
    """What it prints. It sees neither the checkout nor what this process was started with."""
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=minutes * MINUTES,
    )
    assert done.returncode == 0, f"{words} ended with {done.returncode}:\n{done.stdout[-4000:]}"
    return done.stdout


def copy_of_the_checkout(folder: Path) -> Path:
    """Without what earlier builds left there, which would hide that a file is missing."""
    listed = call("git", "-C", ROOT, "ls-files", "-co", "--exclude-standard", "-z", cwd=ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def environment(folder: Path) -> Path:
    """Its interpreter."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def installed(python: Path) -> set[str]:
    listing = call(python, "-m", "pip", "show", "--files", "headrace", cwd=python.parent)
    files = listing.partition("Files:\n")[2].split()
    return {name for name in files if name.startswith("headrace/") and not name.endswith(".pyc")}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="of a checkout")
def test_what_is_built_installs_into_an_empty_environment_and_runs(tmp_path: Path) -> None:
    tools, fresh = environment(tmp_path / "tools"), environment(tmp_path / "fresh")
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
    call(tools, *pip, "build", cwd=tmp_path)
    source = copy_of_the_checkout(tmp_path / "source")
    call(tools, "-m", "build", "--outdir", tmp_path / "dist", source, cwd=tmp_path)
    (wheel,), (sdist,) = (tmp_path / "dist").glob("*.whl"), (tmp_path / "dist").glob("*.tar.gz")

    package = {
        str(path.relative_to(source / "src"))
        for path in (source / "src").rglob("*")
        if path.is_file() and ".egg-info" not in str(path)
    }
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if name.startswith("headrace/")} == package
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"LICENSE", "README.md", "Makefile", "constraints.txt", "tests/conftest.py", "docs/design.md"}
    assert needed <= names, "the suite can be run from the sdist"

    call(fresh, *pip, "-c", ROOT / "constraints.txt", wheel, cwd=tmp_path, minutes=8)
    headrace = fresh.parent / "headrace"
    said = call(headrace, "quickstart", "--dir", "first", cwd=tmp_path)
    assert (tmp_path / "first" / "plot.html").stat().st_size > 10_000
    assert "reward" in said
    call(headrace, "rollouts", "first/run", "--best", "--html", "rollouts.html", cwd=tmp_path)
    assert "<script>" in (tmp_path / "rollouts.html").read_text()

    call(fresh, *pip, "--no-deps", "--force-reinstall", sdist, cwd=tmp_path)
    assert installed(fresh) == package
    call(headrace, "quickstart", "--dir", "second", "--only-inputs", cwd=tmp_path)
