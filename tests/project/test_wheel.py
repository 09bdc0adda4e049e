"""The source distribution builds the wheel, and the wheel works outside the clone: without extras, and with one."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

import mmdiff
from mmdiff.commit import commit_of
from tests.support.installing import Environment, build
from tests.support.paths import ROOT

SAMPLE = ROOT / "tests" / "sample"
VERSION = f"mmdiff {mmdiff.__version__} (commit {mmdiff.__commit__})\n"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("environment"), built[1])


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work") / "sample"
    shutil.copytree(SAMPLE, folder)
    return folder


def modules() -> set[str]:
    """Everything that an installed package must hold, by its place in the package."""
    endings = (".py", ".css", ".js", ".html", ".svg", ".typed")
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "mmdiff", "cli", "formats"]
    tracked = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    inside = [name.removeprefix("mmdiff/") for name in tracked if name.endswith(endings)]
    return {f"mmdiff/{name}" for name in inside}


def test_wheel_and_source_distribution_hold_every_module_and_the_commit(built: tuple[Path, Path]) -> None:
    sources, wheel = built
    with zipfile.ZipFile(wheel) as opened:
        packed = {name for name in opened.namelist() if not name.partition("/")[0].endswith(".dist-info")}
        assert opened.read("mmdiff/_commit.txt").decode().strip() == mmdiff.__commit__
        licences = [name for name in opened.namelist() if name.endswith("licenses/LICENSE")]
    assert packed == modules() | {"mmdiff/_commit.txt"}
    assert licences
    with tarfile.open(sources) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert modules() | {"mmdiff/_commit.txt", "setup.py", "pyproject.toml", "README.md", "LICENSE"} <= inside


def test_without_extras_what_needs_none_works_and_the_rest_names_its_extra(installed: Environment, work: Path) -> None:
    def run(*words: str) -> str:
        outcome = installed.run("mmdiff", *words, cwd=work)
        assert outcome.returncode == 0, outcome.stderr
        return outcome.stdout

    assert run("--version") == VERSION
    assert str(ROOT) not in installed.run("python", "-c", "import mmdiff; print(mmdiff.__file__)", cwd=work).stdout
    run("import", "background.npy")
    run("import", "seeds.npy", "--role", "seeds", "--labels", "seed_labels.npy", "--class-names", "class_names.json")
    run("import", "test.npy", "--role", "test", "--labels", "test_labels.npy")

    for words, extra in (
        (["build-graph"], "cpu"),
        (["logreg"], "torch"),
        (["browse"], "web"),
        (["diffuse", "--dask", "x"], "dask"),
    ):
        outcome = installed.run("mmdiff", *words, cwd=work)
        assert (outcome.returncode, outcome.stdout) == (2, "")
        assert outcome.stderr.endswith(f"pip install 'mmdiff[{extra}]'\n")
        assert outcome.stderr.count("\n") == 1

    rows = np.concatenate([np.load(work / f"{role}.npy").astype(np.float32) for role in ("background", "seeds", "test")])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    np.save(work / "lists.npy", np.argsort(-rows @ rows.T, axis=1)[:, :10].astype(np.int32))
    run("import-graph", "lists.npy", "--store", "mmdiff-store")
    run("diffuse", "--iterations", "2")
    assert "scores/diffusion" in run("evaluate")
    assert "graph/W" in run("inspect")
    assert run("verify").startswith("ok")


def test_with_the_extra_for_searching_the_sample_runs(installed: Environment, work: Path) -> None:
    installed.add("faiss-cpu")
    shutil.rmtree(work / "mmdiff-store", ignore_errors=True)
    script = (
        "import mmdiff\n"
        "store = mmdiff.open('mmdiff-store', create=True)\n"
        "store.add('background.npy')\n"
        "store.add('seeds.npy', role='seeds', labels='seed_labels.npy')\n"
        "store.add('test.npy', role='test', labels='test_labels.npy')\n"
        "store.build_graph(k=10)\n"
        "store.diffuse(iterations=3)\n"
        "print(store.evaluate()['scores'][0]['iterations'][-1]['all']['top5']['accuracy'])\n"
    )
    outcome = installed.run("python", "-c", script, cwd=work)
    assert outcome.returncode == 0, outcome.stderr
    assert float(outcome.stdout) > 0.8


def test_the_commit_is_that_of_the_clone_or_of_the_build_or_unknown(tmp_path: Path) -> None:
    package = tmp_path / "mmdiff"
    package.mkdir()
    assert commit_of(package) == ""
    (package / "_commit.txt").write_text("abc1234\n")
    assert commit_of(package) == "abc1234"
    (package / "_commit.txt").write_bytes(b"\xff\xfe")
    assert commit_of(package) == ""
    # An environment within the clone of something else does not take that one's commit.
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (package / "_commit.txt").write_text("abc1234\n")
    assert commit_of(package) == "abc1234"
    # A clone without commits, or that git refuses to read.
    (tmp_path / "setup.py").touch()
    assert commit_of(package) == ""


def test_the_clone_says_its_commit() -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert len(mmdiff.__commit__) >= 7
    assert head.startswith(mmdiff.__commit__)


def test_without_a_commit_the_version_stands_alone(installed: Environment, work: Path) -> None:
    baked = installed.package / "_commit.txt"
    written = baked.read_text()
    baked.unlink()
    assert installed.run("mmdiff", "--version", cwd=work).stdout == f"mmdiff {mmdiff.__version__}\n"
    baked.write_text(written)
