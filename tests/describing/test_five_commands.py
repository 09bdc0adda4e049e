"""From a folder of images to a report with five commands, as docs/images.md has them; and a describer beats pixels."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from typer.testing import CliRunner

import mmdiff
from mmdiff.cli import app
from tests.support.paths import DOCS


@pytest.fixture(scope="module")
def shapes() -> ModuleType:
    """The script docs/shapes.py."""
    sys.path.insert(0, str(DOCS))
    try:
        spec = importlib.util.spec_from_file_location("shapes", DOCS / "shapes.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(DOCS))
    return module


def commands() -> list[list[str]]:
    """The five commands of the page."""
    block = re.search(r"<!-- runs on shapes -->\n```sh\n(.*?)```", (DOCS / "images.md").read_text(), re.DOTALL)
    assert block is not None
    found = [line.split()[1:] for line in block[1].splitlines()]
    assert len(found) == 5
    return found


def test_five_commands_lead_from_a_folder_of_images_to_a_report_and_the_describer_beats_pixels(
    tmp_path: Path, shapes: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shapes.write(tmp_path / "shapes", base=50, each=12, labelled=2, tests=1, side=24)
    # Smaller than on the page, and on one thread, on which the weights are the same anywhere.
    small = ["--size", "24", "--width", "8", "--epochs", "12", "--threads", "1"]
    for command in commands():
        words = [word for word in command if word not in ("--size", "32", "--width", "16")]
        outcome = CliRunner().invoke(app, [*words, *(small if words[0] == "train-describer" else [])])
        assert outcome.exit_code == 0, outcome.output
    page = (tmp_path / "report.html").read_text()
    assert "data:image/" in page
    store = mmdiff.open("mmdiff-store")
    assert store["descriptors/background"].spec("vectors").shape == (240, 64)
    ids, truth = shapes.novel_images(tmp_path / "shapes")
    row_of = {name: row for row, name in enumerate(store["descriptors/background"].strings("ids"))}
    described = np.asarray(store["descriptors/background"]["vectors"])[[row_of[name] for name in ids]]
    pixels = shapes.pixels_of(tmp_path / "shapes" / "collection", ids)
    share = [np.mean(shapes.accuracies(rows, truth, (5,), 4)[5]) for rows in (pixels, described)]
    assert share[1] > 2 * share[0]


def test_the_table_of_the_page_is_that_of_the_last_measurement(shapes: ModuleType) -> None:
    page = (DOCS / "images.md").read_text()
    assert shapes.page(page) == page, "run docs/shapes.py --measure"
    found = json.loads(shapes.RESULT.read_text())
    mean = {(row["descriptors"], row["labels"]): np.mean(row["accuracy"]) for row in found["results"]}
    assert all(mean["describer", labels] > mean["pixels", labels] for labels in shapes.LABELLED)
