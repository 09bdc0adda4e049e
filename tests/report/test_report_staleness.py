"""The HTML report of a stale or half-finished store: nothing stale is shown, and advice leads to a complete report."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mmdiff.cli import app
from mmdiff.evaluation.stage import Request as EvaluationRequest
from mmdiff.evaluation.stage import evaluate
from mmdiff.formats.errors import FILE, BadLabels, BadOption, Missing, MmdiffError, Parameter, Stale, call
from mmdiff.formats.store.manifest import Json
from mmdiff.formats.store.store import Store
from mmdiff.importing.stage import Request as ImportRequest
from mmdiff.importing.stage import import_descriptors
from mmdiff.report.gathering import in_words
from mmdiff.report.stage import Request, write_report
from tests.report.outline import Outline
from tests.support.experiments import publish_experiment
from tests.support.worlds import make_world


def run(store: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--store", str(store)])


def done(store: Path, *arguments: str) -> None:
    outcome = run(store, *arguments)
    assert outcome.exit_code == 0, outcome.output


def report(world: Path, store: str = "store", request: Request | None = None) -> Json:
    return write_report(Store.open(world / store), world / "report.html", request or Request())


def imports(world: Path) -> dict[str, list[str]]:
    """The commands that import each role into a new store."""
    commands = {"background": ["import", str(world / "background.npy"), "--role", "background", "--dims", "8"]}
    for role in ("seeds", "test"):
        labels = str(world / f"{role}-labels.txt")
        commands[role] = ["import", str(world / f"{role}.npy"), "--role", role, "--labels", labels]
    return commands


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def stale(tmp_path: Path) -> Path:
    """A diffusion whose seeds were imported again, with other labels."""
    folder = make_world(tmp_path)
    labels = (folder / "seeds-labels.txt").read_text().splitlines()
    (folder / "other-labels.txt").write_text("".join(f"{label}\n" for label in reversed(labels)))
    again = ImportRequest([str(folder / "seeds.npy")], "seeds", dims=8, labels=str(folder / "other-labels.txt"))
    import_descriptors(folder / "store", again)
    return folder


def test_stale_scores_are_left_out_with_the_cause_and_remedy_of_evaluate(stale: Path) -> None:
    with pytest.raises(Stale) as refused:
        evaluate(Store.open(stale / "store"), EvaluationRequest())
    found = report(stale)
    assert found["notes"] == [f"left out {refused.value}"]
    assert not {"accuracy", "iterations", "classes", "paths"} & set(found["sections"])
    assert "Left out scores/diffusion: " in Outline((stale / "report.html").read_text()).text


def test_paths_of_stale_scores_are_refused_with_the_same_cause(stale: Path) -> None:
    with pytest.raises(Stale) as refused:
        evaluate(Store.open(stale / "store"), EvaluationRequest())
    with pytest.raises(Stale) as asked:
        report(stale, request=Request(tests=["t4"]))
    assert str(asked.value) == str(refused.value)


def test_every_step_towards_scores_can_be_reported(world: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    steps = [*imports(world).values(), ["build-graph", "--k", "4"], ["diffuse", "--iterations", "2"]]
    notes = []
    for step in steps:
        done(store, *step)
        found = write_report(Store.open(store), tmp_path / "report.html", Request())
        notes.append(found["notes"])
    no_tests, no_scores = notes[0], notes[2]
    assert no_tests == notes[1]
    assert no_tests[0].startswith("nothing is evaluated: no test points were imported")
    assert no_scores == notes[3]
    assert all("nothing is evaluated" in note for note in no_scores)
    assert notes[4] == []
    assert "accuracy" in found["sections"]


def test_advice_without_test_points_leads_to_accuracies(world: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    commands = imports(world)
    later = [["build-graph", "--k", "4"], ["diffuse", "--iterations", "2", "--predict-nodes", str(tmp_path / "nodes.parquet")]]
    for step in (commands["background"], commands["seeds"], *later):
        done(store, *step)
    (note,) = write_report(Store.open(store), tmp_path / "report.html", Request())["notes"]
    assert note == "nothing is evaluated: no test points were imported, so there are no scores of any."
    done(store, *commands["test"])
    (note,) = write_report(Store.open(store), tmp_path / "report.html", Request())["notes"]
    assert note.startswith("nothing is evaluated: ")
    for step in later:
        done(store, *step)
    found = write_report(Store.open(store), tmp_path / "report.html", Request())
    assert found["notes"] == []
    assert "accuracy" in found["sections"]


@pytest.mark.parametrize("roles", [("background", "seeds"), ("background", "seeds", "test")])
def test_paths_without_a_diffusion_are_refused_with_the_next_step(world: Path, tmp_path: Path, roles: tuple[str, ...]) -> None:
    store = tmp_path / "store"
    for role in roles:
        done(store, *imports(world)[role])
    with pytest.raises(Missing) as refused:
        write_report(Store.open(store), tmp_path / "report.html", Request(tests=["3"]))
    assert str(refused.value).startswith("test='3': ")
    assert str(refused.value).endswith("store.diffuse()" if "test" in roles else "store.add(FILE, labels=FILE, role='test')")
    shown = run(store, "report", "--out", str(tmp_path / "report.html"), "--test", "3").stderr
    assert shown.startswith("mmdiff: --test 3: ")


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (
            BadLabels("no labels. Import with ", Parameter("labels", FILE), "."),
            "no labels. Import with labels.",
        ),
        (BadOption(Parameter("cols_per_batch", 3), ": too few."), "cols per batch 3: too few."),
        (Missing("no graph. Run first: ", call("build_graph")), "no graph. Run first: build the graph"),
        (
            Missing("no test points. Run first: ", call("add", FILE, labels=FILE, role="test")),
            "no test points. Run first: import FILE with labels and role test",
        ),
    ],
)
def test_notes_spell_no_option_and_no_command(error: MmdiffError, note: str) -> None:
    assert in_words(error) == note


def test_diffusion_of_a_label_file_says_why_it_has_no_paths(tmp_path: Path) -> None:
    folder = make_world(tmp_path)
    labels = tmp_path / "labels.txt"
    labels.write_text("\n" * 90 + (folder / "seeds-labels.txt").read_text())
    done(folder / "store", "diffuse", "--iterations", "2", "--labels", str(labels))
    notes = report(folder)["notes"]
    assert notes == ["scores/diffusion has no paths here, since its labels come from labels.txt and not from the store."]


def test_experiment_whose_data_have_changed_is_shown_with_a_warning(world: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    import_descriptors(store, ImportRequest([str(world / "background.npy")], "background", dims=8))
    data = tmp_path / "train.npy"
    data.write_bytes(b"before")
    publish_experiment(store, "table-3", data=data)
    write_report(Store.open(store), tmp_path / "report.html", Request())
    assert "has changed since" not in (tmp_path / "report.html").read_text()
    data.write_bytes(b"now another")
    write_report(Store.open(store), tmp_path / "report.html", Request())
    assert "train.npy has changed since these results were computed" in Outline((tmp_path / "report.html").read_text()).text
