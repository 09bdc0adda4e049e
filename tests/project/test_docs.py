"""The documentation is executed: its code runs, its generated parts are what the program says now, its links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

from tests.support.blocks import blocks_of
from tests.support.paths import DOCS, ROOT, SAMPLE

README = (ROOT / "README.md").read_text()
PAGES = sorted(DOCS.glob("*.md"))
# Blocks of this page are signatures, and the examples of docstrings, which tests/api runs.
GENERATED = "python.md"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that pages speak of: the sample, the table of the tutorial, and two arrays."""
    folder = tmp_path_factory.mktemp("files")
    for file in SAMPLE.iterdir():
        shutil.copy(file, folder)
    table = blocks_of((DOCS / "tutorial.md").read_text())[0]
    subprocess.run([sys.executable, "-c", table.code], cwd=folder, check=True)
    rows = np.concatenate([np.load(folder / "test.npy"), np.load(folder / "seeds.npy")])
    labels = np.concatenate([np.load(folder / "test_labels.npy"), np.load(folder / "seed_labels.npy")])
    np.save(folder / "embeddings.npy", rows)
    np.save(folder / "labels.npy", np.where(np.arange(len(rows)) % 3 == 0, labels, -1))
    return folder


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *(page for page in PAGES if page.name != GENERATED)], ids=lambda page: page.name
)
def test_the_code_of_the_pages_runs(page: Path, files: Path, tmp_path: Path) -> None:
    code = [block for block in blocks_of(page.read_text()) if block.language]
    assert {block.language for block in code} <= {"python", "sh", "toml"}
    if all(block.reason for block in code):
        return
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.support.blocks", str(page)]
    outcome = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.name)
def test_code_is_marked_as_code(page: Path) -> None:
    for block in blocks_of(page.read_text()):
        if not block.language and page.name not in ("commands.md", "CONTRIBUTING.md"):
            assert not re.match(r"(mmdiff|pip|python|make|import|from) ", block.code), f"{page.name}: {block.code}"


def test_the_readme_has_at_most_150_lines() -> None:
    assert len(README.splitlines()) <= 150


def test_the_command_reference_is_what_the_program_says(generate: ModuleType) -> None:
    assert (DOCS / "commands.md").read_text() == generate.commands_page(), "run `make docs`"


def test_the_python_reference_is_what_the_docstrings_say(generate: ModuleType) -> None:
    assert (DOCS / "python.md").read_text() == generate.python_page(), "run `make docs`"


def test_the_page_of_errors_is_the_tree(generate: ModuleType) -> None:
    assert (DOCS / "errors.md").read_text() == generate.beside("errors_page").page(), "run `make docs`"


def test_the_table_of_the_readme_is_that_of_the_last_benchmark(generate: ModuleType) -> None:
    assert generate.readme(README) == README, "run `make docs`"


def test_the_page_of_benchmarks_is_that_of_the_last_ones(generate: ModuleType) -> None:
    page = generate.pages().page(generate.results())
    assert (DOCS / "benchmarks.md").read_text() == page, "run `make docs`"


@pytest.mark.parametrize("name", ["concepts.md", "choosing.md"])
def test_the_tables_of_concepts_are_those_of_the_experiments(generate: ModuleType, name: str) -> None:
    page = (DOCS / name).read_text()
    assert generate.beside("concept_figures").updated(page) == page, "run `make docs`"


def test_the_figures_of_campaigns_are_those_of_the_last_run(generate: ModuleType) -> None:
    page = (DOCS / "testing.md").read_text()
    assert generate.testing(page) == page, "run `make docs`"


def test_the_comparison_with_scikit_learn_is_the_last_one(generate: ModuleType) -> None:
    page = (ROOT / "docs" / "sklearn.md").read_text()
    assert generate.comparison(page) == page, "run `make docs`"


def test_every_link_leads_to_a_file_and_a_heading_that_are_there() -> None:
    for page in (*ROOT.glob("*.md"), *PAGES):
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", _without_code(page.read_text())):
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name} links to {target}"
            if anchor:
                assert anchor in set(_anchors(file.read_text())), f"{page.name} links to {target}#{anchor}"


def _without_code(page: str) -> str:
    return re.sub(r"(?ms)^```.*?^```$|`[^`\n]*`", "", page)


def _anchors(page: str) -> Iterator[str]:
    """The anchors that headings get, on the site as elsewhere: words in lower case, with hyphens between them."""
    for heading in re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?ms)^```.*?^```$", "", page)):
        yield re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def test_every_page_is_in_the_navigation_of_the_site_once() -> None:
    nav = list(_leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    of_the_root = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
    assert sorted(nav) == sorted([*(page.name for page in PAGES), *of_the_root])


def _leaves(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for below in nav.values() if isinstance(nav, dict) else nav:
            yield from _leaves(below)


def test_the_site_asks_for_nothing_from_elsewhere() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    assert config["strict"] is True
    assert config["use_directory_urls"] is False
    assert config["theme"]["font"] is False
    assert "offline" in config["plugins"]
    own = [*config["extra_css"], *config["extra"]["polyfills"]]
    assert all((DOCS / name).is_file() for name in own)
    for picture in DOCS.glob("*.svg"):
        assert not re.search(r"url\(\W?https?:|href=\"https?:", picture.read_text()), picture.name


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs-material is not installed; `make site` installs it")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1"}
    outcome = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    # Servers show the page of status 404 at any address, so that its links begin at their root.
    for page in set((tmp_path / "site").glob("*.html")) - {tmp_path / "site" / "404.html"}:
        text = page.read_text()
        assert not re.search(r'<(script|link|img)[^>]*(src|href)="?https?:', text), page.name
        for target in re.findall(r'(?:src|href)="(?!https?:|#|mailto:)([^"#?]+)', text):
            assert target == "." or (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_command_is_in_the_reference() -> None:
    page = (DOCS / "commands.md").read_text()
    files = {path.stem for path in (ROOT / "cli").glob("*.py")} - {"__init__", "errors", "generated", "options", "show"}
    for command in files:
        assert f"## `mmdiff {'import' if command == 'importing' else command.replace('_', '-')}`" in page
