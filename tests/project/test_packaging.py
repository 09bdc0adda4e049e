"""What describes the package says the same everywhere: versions, floors, recipes, images, the citation."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import mmdiff
from tests.support.paths import DOCS, ROOT

PACKAGING = ROOT / "packaging"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
RECIPE: dict[str, Any] = yaml.safe_load((PACKAGING / "conda" / "recipe.yaml").read_text())
DOCKERFILES = ("Dockerfile", "Dockerfile.gpu")

# Extras that are tested with the newest versions only, and those that make no sense together with others.
NOT_WITH_OLDEST = {"gpu", "torch", "images", "networks", "bench", "dev", "interop", "site", "all"}
FOR_DEVELOPERS = {"bench", "dev", "interop", "site"}
# Extras that are not installed together with all others.
APART = {"gpu", "networks", "all"}
CONDA_NAMES = {
    "google-crc32c": "python-google-crc32c",
    "torch": "pytorch",
    "dask": "dask-core",
    "open_clip_torch": "open-clip-torch",
}


def floors(requirements: list[str]) -> dict[str, str]:
    """The oldest version of each requirement."""
    found = {}
    for requirement in requirements:
        read = re.match(r"([\w.-]+)(?:\[\w+\])?>=([\d.]+)", requirement)
        assert read is not None, requirement
        found[read[1]] = read[2]
    return found


def pinned(file: str) -> dict[str, str]:
    return dict(re.findall(r"(?m)^([\w.-]+)==([\w.]+)$", (ROOT / file).read_text()))


def filled(version: str) -> tuple[int, ...]:
    numbers = [int(number) for number in version.split(".")]
    return tuple(numbers + [0] * (3 - len(numbers)))


def users_extras() -> dict[str, str]:
    return floors([each for extra, wanted in EXTRAS.items() if extra not in FOR_DEVELOPERS | {"gpu", "all"} for each in wanted])


def test_oldest_versions_are_the_lower_ends_of_the_ranges() -> None:
    allowed = floors(PROJECT["dependencies"])
    for extra, requirements in EXTRAS.items():
        if extra not in NOT_WITH_OLDEST:
            allowed |= floors(requirements)
    oldest = pinned("constraints-oldest.txt")
    assert {name: filled(version) for name, version in oldest.items()} == {
        name: filled(version) for name, version in allowed.items()
    }


def test_what_is_run_with_the_oldest_versions_is_there() -> None:
    listed = re.search(r"(?s)\nWITH_OLDEST := (.*?[^\\])\n", (ROOT / "Makefile").read_text())
    assert listed is not None
    places = listed[1].replace("\\\n", " ").split()
    assert len(places) > 10
    assert all((ROOT / place).exists() for place in places)


def test_the_newest_versions_are_within_the_ranges() -> None:
    newest = {name.lower(): version for name, version in pinned("constraints.txt").items()}
    for name, floor in {**floors(PROJECT["dependencies"]), **users_extras()}.items():
        assert filled(newest[name.lower()]) >= filled(floor), name


def test_the_extra_of_all_holds_all_extras_for_users() -> None:
    listed = re.fullmatch(r"mmdiff\[(.*)\]", EXTRAS["all"][0])
    assert listed is not None
    assert set(listed[1].split(",")) == EXTRAS.keys() - FOR_DEVELOPERS - APART


def test_the_page_explains_every_extra() -> None:
    page = (DOCS / "install.md").read_text()
    assert set(re.findall(r"(?m)^\| `(\w+)` \|", page)) == EXTRAS.keys() - FOR_DEVELOPERS


def test_versions_agree() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == RECIPE["context"]["version"] == mmdiff.__version__
    assert f"## {mmdiff.__version__}, " in (ROOT / "CHANGELOG.md").read_text()


def test_the_citation_names_the_software_and_the_paper() -> None:
    """The fields that the Citation File Format 1.2.0 requires."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert citation["license"] == PROJECT["license"]
    assert all(citation[field] for field in ("message", "title", "authors"))
    (paper,) = citation["references"]
    assert all(paper[field] for field in ("type", "title", "authors"))
    assert [author["family-names"] for author in paper["authors"]] == ["Douze", "Szlam", "Hariharan", "Jégou"]


def conda(requirements: list[str]) -> dict[str, str]:
    return {name: low for name, low in re.findall(r"(?m)^([\w-]+) >=([\d.]+)", "\n".join(requirements)) if name != "python"}


def test_the_conda_recipe_requires_what_the_wheel_requires() -> None:
    def named(found: dict[str, str]) -> dict[str, str]:
        return {CONDA_NAMES.get(name, name): version for name, version in found.items()}

    base, optional = named(floors(PROJECT["dependencies"])), named(users_extras())
    required, constrained = conda(RECIPE["requirements"]["run"]), conda(RECIPE["requirements"]["run_constraints"])
    assert base.items() <= required.items()
    assert (required.items() - base.items()) | constrained.items() == optional.items()
    assert f"python {PROJECT['requires-python']}" in RECIPE["requirements"]["run"]
    assert RECIPE["build"]["python"]["entry_points"] == [f"mmdiff = {PROJECT['scripts']['mmdiff']}"]
    assert "setuptools >=77" in RECIPE["requirements"]["host"]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_images_copy_what_is_there_and_run_as_a_user(name: str) -> None:
    text = (PACKAGING / name).read_text()
    ignored = (ROOT / ".dockerignore").read_text()
    for line in re.findall(r"(?m)^COPY (?!--)(.*)$", text):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source}\n" in ignored, source
    assert re.search(r"(?m)^USER [1-9]\d*$", text)
    assert 'ENTRYPOINT ["mmdiff"]' in text
    extras = re.search(r'ARG EXTRAS="(.*)"', text)
    assert extras is not None
    assert set(extras[1].split(",")) <= EXTRAS.keys()


@pytest.mark.parametrize("name", DOCKERFILES)
def test_the_linter_of_dockerfiles_has_no_complaint(name: str) -> None:
    beside = Path(sys.executable).parent / "hadolint"
    program = str(beside) if beside.exists() else shutil.which("hadolint")
    if program is None:
        pytest.skip("hadolint is not installed")
    outcome = subprocess.run([program, PACKAGING / name], capture_output=True, text=True)
    assert (outcome.returncode, outcome.stdout) == (0, "")
