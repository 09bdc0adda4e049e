"""The HTML report shows any store: perfect and hopeless scores, one class, and names that look like markup."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from mmdiff.cli import app
from mmdiff.formats.store.store import Store
from mmdiff.fusion.stage import Request as FuseRequest
from mmdiff.fusion.stage import fuse_scores
from mmdiff.importing.stage import Request as ImportRequest
from mmdiff.importing.stage import import_descriptors
from mmdiff.report.stage import Request, write_report
from tests.report.outline import Outline
from tests.support.worlds import make_world


def report_of(folder: Path, request: Request | None = None) -> str:
    write_report(Store.open(folder / "store"), folder / "report.html", request or Request())
    return (folder / "report.html").read_text()


def run(*arguments: str) -> None:
    outcome = CliRunner().invoke(app, list(arguments))
    assert outcome.exit_code == 0, outcome.output


def shift_labels(world: Path) -> None:
    """Labels every test point with a class that it is not."""
    classes = (world / "test-labels.txt").read_text().splitlines()
    (world / "wrong.txt").write_text("".join(f"{name}\n" for name in classes[1:] + classes[:1]))
    request = ImportRequest([str(world / "test.npy")], "test", dims=8, labels=str(world / "wrong.txt"))
    import_descriptors(world / "store", request)
    for command in (["build-graph", "--k", "4"], ["diffuse", "--iterations", "3"]):
        run(*command, "--store", str(world / "store"))


@pytest.mark.parametrize("right", [True, False])
def test_scores_that_are_all_right_or_all_wrong_are_charted(tmp_path: Path, right: bool) -> None:
    world = make_world(tmp_path, noise=0.01)
    if not right:
        shift_labels(world)
    run("diffuse", "--iterations", "1", "--name", "short", "--store", str(world / "store"))
    fuse_scores(world / "store", FuseRequest("short", "diffusion", tune=True))
    outline = Outline(report_of(world))
    assert f"rank the true class of {100 if right else 0}.0\N{NO-BREAK SPACE}% of the test points first" in outline.text
    assert "nan" not in outline.text
    assert len(outline.all("svg")) >= 3


def test_store_of_a_single_class_and_iteration_is_charted(tmp_path: Path) -> None:
    world = make_world(tmp_path, classes=("only",))
    run("diffuse", "--iterations", "0", "--store", str(world / "store"))
    text = Outline(report_of(world)).text
    assert "nan" not in text
    assert "100.0" in text


NAMES = (
    "crane [bird]",
    "x [/b]",
    "<script>alert(1)</script>",
    "bell\x07 and \x1b[31mred",
    "&amp; \N{RIGHT-TO-LEFT OVERRIDE}",
    "very " * 200 + "long",
)


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class names and ids that look like markup, or have control characters."""
    world = make_world(tmp_path_factory.mktemp("named"), classes=NAMES)
    ids = "".join(f"{NAMES[row % len(NAMES)]} {row}\n" for row in range(30))
    (world / "test-ids.txt").write_text(ids)
    request = ImportRequest(
        [str(world / "test.npy")], "test", dims=8, labels=str(world / "test-labels.txt"), ids=str(world / "test-ids.txt")
    )
    import_descriptors(world / "store", request)
    for command in (["build-graph", "--k", "4"], ["diffuse", "--iterations", "3"]):
        run(*command, "--store", str(world / "store"))
    return world


def test_class_names_and_ids_are_shown_as_they_are(named: Path) -> None:
    tests = [f"{name} {row}" for row, name in enumerate(NAMES)]
    page = report_of(named, Request(tests=tests))
    outline = Outline(page)
    assert not outline.all("script")
    for text in ("crane [bird]", "x [/b]", "<script>alert(1)</script>", "&amp; "):
        assert text in outline.text
    for row in range(3):
        assert f"Test point {NAMES[row]} {row}" in outline.text


def test_control_characters_are_written_as_escapes(named: Path) -> None:
    page = report_of(named, Request(tests=[f"{NAMES[3]} 3"]))
    assert r"bell\x07 and \x1b[31mred" in page
    assert r"\u202e" in page
    assert not [char for char in page if ord(char) < 32 and char != "\n"]
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in page


def test_long_names_are_shortened_in_tables_and_whole_in_their_titles(named: Path) -> None:
    outline = Outline(report_of(named))
    long = NAMES[-1]
    assert long in {attributes.get("title") for attributes in outline.all("span")}
    assert long not in outline.text


def test_command_takes_names_with_brackets(named: Path, tmp_path: Path) -> None:
    novel = tmp_path / "novel.txt"
    novel.write_text("".join(f"{name}\n" for name in NAMES[:3]))
    run("report", "--out", str(tmp_path / "r.html"), "--novel", str(novel), "--store", str(named / "store"))
    assert "novel classes" in (tmp_path / "r.html").read_text()
