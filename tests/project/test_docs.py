"""The documentation is executed: its commands run, its generated parts are what the program says now."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_code_of_the_readme_runs(tmp_path: Path) -> None:
    for file in (ROOT / "tests" / "sample").iterdir():
        shutil.copy(file, tmp_path)
    blocks = blocks_of(README)
    assert [language for language, _ in blocks] == ["python", "python", "sh", "sh"]
    run(blocks, tmp_path)


def blocks_of(page: str) -> list[tuple[str, str]]:
    """The language and code of the blocks that a page promises to run."""
    return re.findall(r"(?s)<!-- runs -->\n```(\w+)\n(.*?)```", page)


def run(blocks: Sequence[tuple[str, str]], folder: Path) -> None:
    """Runs blocks one after the other, as a reader would."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    for language, code in blocks:
        command = ["bash", "-euc", code] if language == "sh" else [sys.executable, "-c", code]
        outcome = subprocess.run(command, cwd=folder, env={"PATH": path}, capture_output=True, text=True, check=False)
        assert outcome.returncode == 0, outcome.stderr


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_the_code_of_the_pages_runs(page: Path, tmp_path: Path) -> None:
    run(blocks_of(page.read_text()), tmp_path)


def test_the_command_reference_is_what_the_program_says(generate: ModuleType) -> None:
    assert (ROOT / "docs" / "commands.md").read_text() == generate.commands_page(), "run `make docs`"


def test_the_python_reference_is_what_the_docstrings_say(generate: ModuleType) -> None:
    assert (ROOT / "docs" / "python.md").read_text() == generate.python_page(), "run `make docs`"


def test_the_table_of_the_readme_is_that_of_the_last_benchmark(generate: ModuleType) -> None:
    assert generate.readme(README) == README, "run `make docs`"


def test_the_page_of_benchmarks_is_that_of_the_last_ones(generate: ModuleType) -> None:
    page = generate.pages().page(generate.results())
    assert (ROOT / "docs" / "benchmarks.md").read_text() == page, "run `make docs`"


def test_the_figures_of_campaigns_are_those_of_the_last_run(generate: ModuleType) -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    assert generate.testing(page) == page, "run `make docs`"


def test_every_link_to_a_file_leads_somewhere() -> None:
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_command_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    files = {path.stem for path in (ROOT / "cli").glob("*.py")} - {"__init__", "errors", "generated", "options", "show"}
    for command in files:
        assert f"## `mmdiff {'import' if command == 'importing' else command.replace('_', '-')}`" in page
