"""The HTML report is one self-contained, accessible page whose figures are those of `evaluate` and of experiments."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mmdiff.cli import app
from mmdiff.formats.store.store import Store
from mmdiff.fusion.stage import Request as FuseRequest
from mmdiff.fusion.stage import fuse_scores
from mmdiff.importing.stage import Request as ImportRequest
from mmdiff.importing.stage import import_descriptors
from mmdiff.report.stage import Request, write_report
from tests.report.outline import Outline
from tests.support.experiments import publish_experiment
from tests.support.paths import ROOT
from tests.support.worlds import make_world

STYLE = (ROOT / "mmdiff" / "report" / "style.css").read_text()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_world(tmp_path_factory.mktemp("world"))
    store = folder / "store"
    # A second diffusion to fuse with, which is quicker than training a model.
    runner = CliRunner()
    assert runner.invoke(app, ["diffuse", "--iterations", "1", "--name", "short", "--store", str(store)]).exit_code == 0
    fuse_scores(store, FuseRequest("short", "diffusion", tune=True))
    publish_experiment(store, "table-3")
    return folder


@pytest.fixture(scope="module")
def page(world: Path) -> str:
    write_report(Store.open(world / "store"), world / "report.html", Request("owl", str(world / "images")))
    return (world / "report.html").read_text()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["report", *arguments])


def test_page_needs_nothing_but_itself(page: str) -> None:
    outline = Outline(page)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", page)
    assert not outline.all("script")
    assert all(str(image["src"]).startswith("data:image/jpeg;base64,") for image in outline.all("img"))
    policy = next(meta["content"] for meta in outline.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def test_nothing_of_the_user_becomes_markup(page: str) -> None:
    assert "<b>cat" not in page
    assert "<i>diffusion" not in page
    assert "&lt;b&gt;cat&lt;/b&gt;" in page
    assert "dog & wolf" in Outline(page).text


def test_every_figure_is_told_in_words(page: str) -> None:
    outline = Outline(page)
    ids = Counter(attributes["id"] for _, attributes in outline.elements if "id" in attributes)
    drawings = outline.all("svg")
    assert len(drawings) >= 7
    for drawing in drawings:
        assert drawing["role"] == "img"
        assert all(name in ids for name in str(drawing["aria-labelledby"]).split())
    assert len(outline.all("figure")) == len(outline.all("figcaption")) == len(drawings)
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert all(len(caption.split()) > 8 and caption.endswith(".") for caption in captions)
    assert len(outline.all("caption")) == len(outline.all("table"))
    assert all(image["alt"] for image in outline.all("img"))


def test_page_is_in_order(page: str) -> None:
    outline = Outline(page)
    ids = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    assert all(str(link["href"])[1:] in ids for link in outline.all("a"))
    levels = [int(name[1]) for name, _ in outline.elements if re.fullmatch(r"h[1-6]", name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert outline.all("html")[0]["lang"] == "en"
    assert [part for part in ("header", "nav", "main", "footer") if len(outline.all(part)) != 1] == []


def test_accuracies_are_those_of_evaluate(world: Path, page: str) -> None:
    outcome = CliRunner().invoke(app, ["evaluate", "--novel", "owl", "--json", "--store", str(world / "store")])
    for found in json.loads(outcome.stdout)["scores"]:
        for group in ("all", "novel"):
            for figure in found["iterations"][-1][group].values():
                assert f"{100 * figure['accuracy']:.1f}\N{NO-BREAK SPACE}%" in page
                assert f"{100 * figure['low']:.1f}\N{EN DASH}{100 * figure['high']:.1f}" in page
    assert "weight was chosen on these" in page


def test_experiments_are_shown_with_their_spread(world: Path, page: str) -> None:
    lines = Store.open(world / "store").open_artifact("reports/table-3").manifest.facts["lines"]
    for line in lines:
        shown = f"{100 * line['mean']['top5'][line['plane']]:.1f}</"
        assert (shown in page) or line["group"] == "validation"
    assert " ± 1.2" in page
    assert "seeds per novel class (n)" in page


def test_experiment_of_one_draw_or_group_says_what_it_cannot_know(world: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    import_descriptors(store, ImportRequest([str(world / "background.npy")], "background", dims=8))
    publish_experiment(store, "small", ("validation",), draws=1)
    write_report(Store.open(store), tmp_path / "report.html", Request())
    text = Outline((tmp_path / "report.html").read_text()).text
    assert "±" not in text
    assert "on these test points, so the accuracies are optimistically biased" in text


def test_paths_lead_to_the_points_that_were_asked_for(world: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "report.html")
    outcome = run(
        "--out", out, "--test", "t4", "--test", "t7", "--images", str(world / "images"), "--store", str(world / "store")
    )
    assert outcome.exit_code == 0, outcome.stderr
    page = Path(out).read_text()
    assert page.count('<article class="explained">') == 2
    assert "Test point t4" in page
    # Test points have no images here, so each gets a placeholder.
    assert page.count("no image") >= 2


def test_images_of_an_address_are_left_there_and_said(world: Path, tmp_path: Path) -> None:
    template = "https://images.example.org/{role}/{id}.jpg"
    write_report(Store.open(world / "store"), tmp_path / "report.html", Request(images=template))
    page = (tmp_path / "report.html").read_text()
    assert "Thumbnails are loaded from images.example.org" in page
    assert "img-src data: images.example.org" in page
    assert 'src="https://images.example.org/seed/s' in page


def test_same_store_gives_the_same_page(world: Path, tmp_path: Path) -> None:
    for name in ("one.html", "two.html"):
        write_report(Store.open(world / "store"), tmp_path / name, Request())
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def test_report_of_a_store_without_test_points_says_so(world: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    import_descriptors(store, ImportRequest([str(world / "background.npy")], "background", dims=8))
    outcome = run("--out", str(tmp_path / "report.html"), "--json", "--store", str(store))
    found = json.loads(outcome.stdout)
    assert found["sections"] == ["runs"]
    assert "no test points were imported" in found["notes"][0]
    assert "no test points were imported" in Outline((tmp_path / "report.html").read_text()).text


def test_test_points_without_labels_have_paths_but_no_accuracies(tmp_path: Path) -> None:
    world = make_world(tmp_path)
    store = world / "store"
    import_descriptors(store, ImportRequest([str(world / "test.npy")], "test", dims=8))
    for command in (["build-graph", "--k", "4"], ["diffuse", "--iterations", "2"]):
        assert CliRunner().invoke(app, [*command, "--store", str(store)]).exit_code == 0
    found = write_report(Store.open(store), tmp_path / "report.html", Request())
    assert found["sections"] == ["iterations", "paths", "runs"]
    assert "no test point has a label" in found["notes"][0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "/no/such/folder/report.html"], "there is no folder /no/such/folder"),
        (["--out", "{world}/store/report.html"], "which is no place for other files"),
        (["--novel", "cow"], "class 'cow' is neither among those of the seeds"),
        (["--images", "/no/where"], "--images /no/where: no such folder."),
        (["--test", "x1"], "--test x1: no test point has this id"),
    ],
)
def test_bad_options_are_answered_with_a_sentence(world: Path, tmp_path: Path, arguments: list[str], message: str) -> None:
    given = [argument.format(world=world) for argument in arguments]
    out = [] if "--out" in given else ["--out", str(tmp_path / "report.html")]
    outcome = run(*given, *out, "--store", str(world / "store"))
    assert outcome.exit_code == 2
    assert message in outcome.stderr
    assert not (tmp_path / "report.html").exists()


def test_text_can_be_read_on_both_schemes() -> None:
    """All text colours have a contrast of at least 4.5 to 1 (WCAG AA)."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)[:2]
    for block in blocks:
        colors = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", block))
        for text in ("ink", "soft", "accent", "warn", *(f"s{number}" for number in range(6))):
            assert min(_contrast(colors[text], colors[on]) for on in ("page", "card")) >= 4.5, text
        assert _contrast(colors["warn"], colors["warn-pale"]) >= 4.5
        assert _contrast(colors["ink"], colors["accent-pale"]) >= 4.5


def _contrast(one: str, other: str) -> float:
    brightness = sorted((_luminance(one), _luminance(other)))
    return (brightness[1] + 0.05) / (brightness[0] + 0.05)


def _luminance(color: str) -> float:
    parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
