"""Bad input to `mmdiff diffuse` and to the diffusion on arrays: a sentence with a remedy, exit code 2, an unchanged store."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from typer.testing import CliRunner

import mmdiff
from mmdiff.building.stage import Request as Build
from mmdiff.building.stage import build_graph
from mmdiff.cli import app
from mmdiff.diffusion.api import diffuse
from mmdiff.formats.errors import BadLabels, BadOption, CountMismatch, InputError
from tests.diffusion.test_diffuse_store import CLASSES, SEEDS, TESTS, import_rows, import_seeds, make, stock
from tests.knn.test_knn import clustered
from tests.support.graphs import some_graph
from tests.support.stores import publish, recipe, tree


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make(tmp_path_factory.mktemp("made") / "folder")
    for name, lines in {
        "short.txt": "0.5\n0.5\n",
        "negative.txt": "1\n1\n1\n-0.25\n1\n1\n1\n",
        "endless.txt": "1\n1\ninf\n1\n1\n1\n1\n",
        "nan.txt": "nan\n1\n1\n1\n1\n1\n1\n",
        "zeros.txt": "0\n" * CLASSES,
        "one_zero.txt": "0\n" + "1\n" * (CLASSES - 1),
        "words.txt": "one\n" * CLASSES,
        "few_labels.txt": "1\n2\n",
        "no_labels.txt": "\n" * (300 + SEEDS),
    }.items():
        (folder / name).write_text(lines)
    np.save(folder / "table.npy", np.ones((CLASSES, 2)))
    return folder


@pytest.fixture
def made(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = Path(shutil.copytree(original, tmp_path / "folder", symlinks=True))
    monkeypatch.chdir(folder)
    return folder


PRIOR = "--eta prior --prior"
OPTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "negative iterations": ("--iterations -1", ("--iterations -1", "from 0 to 10,000")),
    "an unknown operator": ("--eta softmax", ("--eta", "softmax", "sinkhorn")),
    "an unknown normalisation": ("--normalize-graph columns", ("--normalize-graph", "symmetric")),
    "an unknown dtype": ("--dtype float16", ("--dtype", "bfloat16")),
    "a power of zero": ("--gamma 0", ("--gamma 0", "from 0.001 to 1000")),
    "a negative power": ("--gamma -1.5", ("--gamma -1.5", "from 0.001 to 1000")),
    "a power that is no number": ("--gamma nan", ("--gamma nan", "from 0.001 to 1000")),
    "no alpha": ("--alpha 0", ("--alpha 0", "from 1e-06 to 1")),
    "too much alpha": ("--alpha 1.01", ("--alpha 1.01", "from 1e-06 to 1")),
    "alpha that is no number": ("--alpha nan", ("--alpha nan", "from 1e-06 to 1")),
    "too few priors": (f"{PRIOR} short.txt", ("--prior short.txt", "2 values for 7 classes")),
    "a negative prior": (f"{PRIOR} negative.txt", ("--prior negative.txt, class 3", "-0.25", "not negative")),
    "an infinite prior": (f"{PRIOR} endless.txt", ("endless.txt, class 2", "finite")),
    "a prior that is no number": (f"{PRIOR} nan.txt", ("nan.txt, class 0", "finite")),
    "priors of zero": (f"{PRIOR} zeros.txt", ("zeros.txt", "all zero")),
    "a prior that cannot be raised": (f"{PRIOR} one_zero.txt --prior-power -1", ("one_zero.txt", "--prior-power")),
    "words for a prior": (f"{PRIOR} words.txt", ("words.txt, line 1", "one", "not a number")),
    "a table for a prior": (f"{PRIOR} table.npy", ("table.npy", "one vector")),
    "no such prior": (f"{PRIOR} nowhere.txt", ("nowhere.txt", "no such file")),
    "a prior for another operator": ("--eta column --prior seeds", ("--prior", "--eta column", "--eta prior")),
    "a power of no prior": ("--prior-power 2", ("--prior-power", "--eta column")),
    "no columns": ("--cols-per-batch 0", ("--cols-per-batch 0", "from 1 to", "auto")),
    "negative columns": ("--cols-per-batch=-3", ("--cols-per-batch -3", "from 1 to")),
    "columns that are no number": ("--cols-per-batch abc", ("--cols-per-batch abc", "auto")),
    "columns that look like a number": ("--cols-per-batch=--5", ("--cols-per-batch --5", "auto")),
    "columns in another script": ("--cols-per-batch ²", ("--cols-per-batch '²'", "auto")),
    "too little memory": ("--memory 1M", ("--memory 1M", "324 nodes", "is needed")),
    "no amount of memory": ("--memory plenty", ("--memory plenty", "4G")),
    "predictions with another ending": ("--predict-nodes p.csv", ("--predict-nodes p.csv", ".parquet")),
    "predictions nowhere": ("--predict-nodes nowhere/p.parquet", ("nowhere/p.parquet", "no folder", "Make it first")),
    "predictions in the store": ("--predict-nodes store/p.parquet", ("store/p.parquet", "lies in the store")),
    "an unknown class": ("--classes zebra", ("--classes zebra", "7", "class 0")),
    "an unknown class among others": ("--classes 1,99", ("--classes 99", "7")),
    "no class at all": ("--classes ,", ("chosen classes", "--classes")),
    "a name with a slash": ("--name a/b", ("a/b",)),
    "a name that leads elsewhere": ("--name ..", ("..",)),
    "an empty name": ("--name=", ("scores/",)),
    "too few labels": ("--labels few_labels.txt", ("few_labels.txt", "2 labels for 324 nodes")),
    "labels of nothing": ("--labels no_labels.txt", ("nothing to spread",)),
    "no such labels": ("--labels nowhere.npy", ("nowhere.npy", "no such file")),
}


def refused(folder: Path, options: str = "") -> str:
    """The message of a refused command, which has changed nothing."""
    before = tree(folder)
    outcome = CliRunner().invoke(app, ["diffuse", *options.split(), "--store", "store"])
    assert outcome.exit_code == 2, outcome.output
    assert outcome.stdout == ""
    assert "Traceback" not in outcome.stderr
    assert tree(folder) == before
    return outcome.stderr


@pytest.mark.parametrize(("options", "told"), OPTIONS.values(), ids=OPTIONS.keys())
def test_bad_options_are_told_and_leave_the_store_as_it_was(made: Path, options: str, told: tuple[str, ...]) -> None:
    message = " ".join(refused(made, options).replace("│", " ").split())
    for part in told:
        assert part in message


def test_seeds_without_labels_have_nothing_to_spread(made: Path) -> None:
    publish(made / "store", "descriptors/seeds", {"vectors": np.ones((SEEDS, 16), np.float32)}, recipe(role="seeds"))
    np.save(made / "lists.npy", np.tile(np.arange(3), (300 + SEEDS + TESTS, 1)))
    assert CliRunner().invoke(app, ["import-graph", "lists.npy", "--store", "store"]).exit_code == 0
    assert "descriptors/seeds: no labels" in refused(made)


def test_a_graph_without_labels_has_nothing_to_spread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "folder", "background test")
    monkeypatch.chdir(tmp_path / "folder")
    message = refused(tmp_path / "folder")
    assert "no labels to spread" in message
    assert "mmdiff label FILE" in message
    assert "mmdiff import FILE --labels FILE" in message


def test_a_graph_without_test_points_and_without_a_collection_has_nothing_to_predict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "folder", "seeds")
    monkeypatch.chdir(tmp_path / "folder")
    assert "--role test" in refused(tmp_path / "folder")


def test_seeds_alone_have_no_background_to_predict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "folder", "seeds test")
    monkeypatch.chdir(tmp_path / "folder")
    assert "no background" in refused(tmp_path / "folder", "--predict-nodes p.parquet")


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: import_seeds(folder, np.arange(SEEDS) % CLASSES, seed=5),
        lambda folder: import_seeds(folder, np.arange(SEEDS + 3) % CLASSES),
        lambda folder: import_seeds(folder, (np.arange(SEEDS) + 1) % CLASSES),
        lambda folder: import_rows(folder, "test", clustered(TESTS, 16, 10, 8)),
        lambda folder: import_rows(folder, "background", clustered(280, 16, 10, 8)),
    ],
    ids=["other seeds", "more seeds", "other labels", "other test points", "another background"],
)
def test_a_graph_that_is_older_than_what_it_was_made_of_is_refused(made: Path, change: Callable[[Path], None]) -> None:
    change(made)
    message = refused(made)
    assert "has changed since" in message
    assert re.search(r"Run again: (mmdiff import; then )*mmdiff build-graph", message)


def test_test_points_that_came_after_the_graph_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make(tmp_path / "folder", "background seeds")
    import_rows(folder, "test", clustered(TESTS, 16, 10, 2))
    monkeypatch.chdir(folder)
    message = refused(folder)
    assert "descriptors/test" in message
    assert "Run again: mmdiff build-graph" in message
    build_graph(folder / "store", Build(k=6, index="flat"))
    assert CliRunner().invoke(app, ["diffuse", "--store", "store"]).exit_code == 0


def test_a_class_without_a_seed_is_warned_of_and_its_column_is_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "folder", labels=np.array([1, 2, 4, 5, 6, 6] * 4))
    monkeypatch.chdir(tmp_path / "folder")
    for eta in ("column", "none", "prior", "row", "sinkhorn"):
        outcome = CliRunner().invoke(app, ["diffuse", "--eta", eta, "--store", "store"])
        assert outcome.exit_code == 0, outcome.output
        told = " ".join(outcome.stderr.split())
        assert "2 of 7 classes have no seed (class 0, class 3): their scores are zero everywhere." in told
        scores = stock(tmp_path / "folder", "scores")
        assert not scores[:, :, [0, 3]].any()
        assert scores[:, :, [1, 2, 4, 5, 6]].any(axis=(0, 1)).all()


def graph_and_labels(**changed: Any) -> dict[str, Any]:
    labels = np.full(30, -1)
    labels[3], labels[4] = 0, 2
    return {"graph": some_graph(30, 4), "labels": labels} | changed


PYTHON: dict[str, tuple[dict[str, Any], type[InputError], str]] = {
    "too few labels": ({"labels": np.zeros(29, int)}, CountMismatch, "30 rows"),
    "one label": ({"labels": 3}, CountMismatch, "30 rows"),
    "a cube of labels": ({"labels": np.zeros((30, 2, 2), int)}, CountMismatch, "30 rows"),
    "labels that are no numbers": ({"labels": np.zeros(30)}, BadLabels, "float64"),
    "no label": ({"labels": np.full(30, -1)}, BadLabels, "nothing to spread"),
    "no column of labels": ({"labels": np.empty((30, 0), int)}, BadLabels, "nothing to spread"),
    "labels below -1": ({"labels": np.full(30, -2)}, BadLabels, "no node has a label|from -2"),
    "some labels below -1": ({"labels": np.arange(30) - 2}, BadLabels, "from -2"),
    "more labels than classes": ({"classes": 2}, BadLabels, "for 2 classes"),
    "neighbours beyond the graph": ({"neighbors": [[1, 30]]}, CountMismatch, "row 0: not a row of the graph, which has 30"),
    "neighbours far beyond the graph": (
        {"neighbors": [[1], [2**32 + 1]]},
        CountMismatch,
        "row 1: not a row of the graph, which has 30",
    ),
    "neighbours below -1": ({"neighbors": [[1, -2]]}, CountMismatch, "row 0"),
    "one list of neighbours": ({"neighbors": [1, 2]}, CountMismatch, r"Give row numbers"),
    "neighbours that are no numbers": ({"neighbors": [[1.0]]}, CountMismatch, "float64"),
    "negative iterations": ({"iterations": -1}, BadOption, "iterations=-1"),
    "no columns": ({"cols_per_batch": 0}, BadOption, "cols_per_batch=0"),
    "an unknown operator": ({"eta": "softmax"}, BadOption, "softmax"),
    "a misspelt operator": ({"eta": "colum"}, BadOption, "eta='colum': .* Did you mean column?"),
    "an operator that is no text": ({"eta": np.ones(2)}, BadOption, "Choose from column, row"),
    "a misspelt option": ({"iteration": 3}, BadOption, "iteration: no such option. Did you mean iterations?"),
    "alpha that is no number": ({"alpha": float("nan")}, BadOption, "alpha=nan: expected a number from 1e-06 to 1"),
    "gamma that is no number": ({"gamma": float("nan")}, BadOption, "gamma=nan: expected a number from 0.001 to 1000"),
    "half an iteration": ({"iterations": 2.5}, BadOption, "iterations=2.5: expected a whole number from 0 to 10,000"),
    "iterations of true": ({"iterations": True}, BadOption, "iterations=True: expected a whole number"),
    "a number for a flag": ({"reset_seeds": 1}, BadOption, "reset_seeds=1: expected true or false"),
    "a number for a prior": ({"eta": "prior", "prior": 3}, BadOption, "prior=3: expected uniform, seeds"),
    "a prior of wrong length": ({"eta": "prior", "prior": [1, 1]}, BadOption, "2 values for 3 classes"),
    "a prior for another operator": ({"prior": [1, 1, 1]}, BadOption, "prior: eta='column' has no prior"),
}


@pytest.mark.parametrize(("changed", "kind", "told"), PYTHON.values(), ids=PYTHON.keys())
def test_bad_arguments_in_python_are_errors_in_words(changed: dict[str, Any], kind: type[InputError], told: str) -> None:
    arguments = graph_and_labels(**changed)
    with pytest.raises(kind, match=told):
        diffuse(arguments.pop("graph"), arguments.pop("labels"), **arguments)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_labels_and_neighbours_may_be_whole_numbers_of_any_kind(dtype: str) -> None:
    graph, neighbors = some_graph(30, 4), np.array([[1, 5], [7, 29]])
    labels = np.arange(30) % 3
    expected = diffuse(graph, labels, neighbors=neighbors)
    np.testing.assert_array_equal(diffuse(graph, labels.astype(dtype), neighbors=neighbors.astype(dtype)), expected)
    if dtype.startswith("int"):
        some = diffuse(graph, labels, neighbors=np.array([[1, -1]], dtype))
        np.testing.assert_array_equal(some, diffuse(graph, labels, neighbors=[[1, 0xFFFFFFFF]]))


def test_graph_times_what_does_not_fit_is_refused() -> None:
    graph = mmdiff.Graph.from_scipy(scipy.sparse.eye_array(4))
    for dense in (np.ones(5), np.ones((3, 2)), np.ones((4, 2, 2)), np.float32(1)):
        with pytest.raises(CountMismatch, match="4 nodes"):
            graph @ dense
    np.testing.assert_array_equal(graph @ np.ones((4, 2)), np.ones((4, 2)))
    np.testing.assert_array_equal(graph @ [1, 2, 3, 4], [1, 2, 3, 4])
    assert (graph @ np.ones((4, 0))).shape == (4, 0)
