"""Publishing runs the checks of `verify`: an artifact with bad content gets no name, and no later run finds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mmdiff.formats.errors import BadResult
from mmdiff.formats.store.manifest import Json, Recipe
from mmdiff.formats.store.publish import Draft, Publication
from mmdiff.formats.store.store import Store
from mmdiff.runtime.find_or_make import make
from tests.support.stores import problems, publish, tree

Arrays = dict[str, NDArray[Any]]

SCORES = "scores/diffusion"


def score_arrays(**changed: NDArray[Any]) -> Arrays:
    good: Arrays = {
        "scores": np.ones((2, 3, 4), np.float32),
        "column_sums": np.ones((2, 4), np.float32),
        "class_numbers": np.arange(4),
        "top_classes": np.zeros((5, 2), np.int32),
        "top_scores": np.ones((5, 2), np.float32),
    }
    return good | changed


SCORE_FACTS: Json = {"tests": 3, "classes": 4, "planes": [0, 1]}
SCORE_PARAMETERS: Json = {"method": "diffusion", "iterations": 1}


def cell_arrays(**changed: NDArray[Any]) -> Arrays:
    """Three nodes in two partitions, of two cells and of one."""
    return {
        "vectors": np.ones((3, 2), np.float32),
        "order": np.array([2, 0, 1], np.uint32),
        "centroids": np.ones((2, 2), np.float32),
        "cell_of": np.array([0, 0, 1, 2, 2, 2], np.uint32),
        "members": np.array([0, 1, 2, 2, 1, 0], np.uint32),
        "offsets": np.array([0, 2, 3, 6]),
    } | changed


def small_cell_arrays(**changed: NDArray[Any]) -> Arrays:
    """Seven rows in four cells, of which one is empty, below one centroid."""
    return {
        "vectors": np.ones((7, 2), np.float32),
        "order": np.arange(7, dtype=np.uint32),
        "centroids": np.ones((4, 2), np.float32),
        "coarse": np.ones((1, 2), np.float32),
        "cell_of": np.array([0, 0, 2, 2, 2, 2, 3], np.uint32),
        "offsets": np.array([0, 2, 2, 6, 7]),
        "children": np.array([0, 4]),
    } | changed


def pca_arrays(**changed: NDArray[Any]) -> Arrays:
    return {
        "mean": np.zeros(3, np.float32),
        "components": np.ones((2, 3), np.float32),
        "explained_variance": np.ones(2, np.float32),
    } | changed


PCA_FACTS: Json = {"width": 3, "dims": 2, "reduces": True, "explained_variance": 0.5}
RECIPES = {
    "scores": (SCORES, Recipe("scores", 1, SCORE_PARAMETERS, {}), SCORE_FACTS),
    "cells": ("models/cells", Recipe("cells", 1, {}, {}), {"cells": 2, "partitions": 2}),
    "small cells": ("models/cells", Recipe("cells", 2, {}, {}), {"cells": 4}),
    "pca": ("models/pca", Recipe("pca", 1, {"normalize": True}, {}), PCA_FACTS),
}


def with_value(values: NDArray[Any], at: Any, value: Any) -> NDArray[Any]:
    values[at] = value
    return values


NAN = np.float32(np.nan)
WRONG: list[tuple[str, Arrays, Json, str]] = [
    (
        "scores",
        score_arrays(scores=with_value(np.ones((2, 3, 4), np.float32), (1, 2, 0), NAN)),
        {},
        "plane 1, row 2: values that",
    ),
    ("scores", score_arrays(column_sums=np.full((2, 4), np.inf, np.float32)), {}, "column_sums: row 0: values that are not"),
    ("scores", score_arrays(top_scores=np.full((5, 2), NAN)), {}, "top_scores: row 0: values that are not finite"),
    ("scores", score_arrays(top_scores=np.ones((5, 3), np.float32)), {}, "top_scores: of shape"),
    ("scores", score_arrays(), {"classes": 5}, "4 classes, where the manifest says 5"),
    ("scores", score_arrays(), {"planes": ["0", "1"]}, "does not say which iterations"),
    ("cells", cell_arrays(members=np.array([0, 1, 1, 2, 1, 0], np.uint32)), {}, "members: not a permutation"),
    ("cells", cell_arrays(members=np.array([0, 1, 2, 2, 1, 9], np.uint32)), {}, "members: not a permutation"),
    ("cells", cell_arrays(order=np.array([0, 0, 1], np.uint32)), {}, "order: not a permutation"),
    ("cells", cell_arrays(order=np.array([0, 1], np.uint32)), {}, "order: 2 rows for 3 vectors"),
    ("cells", cell_arrays(cell_of=np.array([0, 0, 1, 2, 2, 3], np.uint32)), {}, "cell_of: row 5: 3 is outside 0..2"),
    ("cells", cell_arrays(centroids=np.full((2, 2), NAN)), {}, "centroids: row 0: values that are not finite"),
    ("cells", cell_arrays(), {"cells": 3}, "2 cells, where the manifest says 3"),
    (
        "small cells",
        small_cell_arrays(cell_of=np.array([0, 0, 1, 2, 2, 2, 3], np.uint32)),
        {},
        "cell_of: row 2: not the cell that the offsets say",
    ),
    ("pca", pca_arrays(components=np.full((2, 3), NAN)), {}, "components: row 0: values that are not finite"),
    ("pca", pca_arrays(mean=np.zeros(2, np.float32)), {}, "mean: 2 rows for 3 values"),
    ("pca", pca_arrays(), {"reduces": False}, "components: there, where the manifest says otherwise"),
    ("pca", {}, {}, "components: missing, where the manifest says otherwise"),
    ("pca", pca_arrays(), {"dims": 7}, "2 dims, where the manifest says 7"),
    ("pca", pca_arrays(), {"explained_variance": "all"}, "does not say how much of the variance"),
]


def make_it(path: Path, kind: str, arrays: Arrays, facts: Json) -> bool:
    """Makes an artifact like a stage; whether it was found."""
    name, recipe, good = RECIPES[kind]

    def fill(draft: Draft) -> Json:
        for array, values in arrays.items():
            draft.values(array, values)
        return good | facts

    with Publication(path, [name], "a test") as publication:
        return make(publication, name, recipe, "a test", fill).reused


@pytest.mark.parametrize(("kind", "arrays", "facts", "told"), WRONG)
def test_bad_content_is_refused_before_it_has_a_name_and_never_found_again(
    quick_folder: Path, kind: str, arrays: Arrays, facts: Json, told: str
) -> None:
    name, recipe, good = RECIPES[kind]
    path = quick_folder / "store"
    for _ in range(2):
        with pytest.raises(BadResult, match=rf"{name}: not published, since its content is wrong \(array .*{told}"):
            make_it(path, kind, arrays, facts)
        assert not path.exists()
    publish(quick_folder / "other", name, arrays, recipe, good | facts)
    found = [f"{problem.array}: {problem.what}" for problem in problems(Store.open(quick_folder / "other"))]
    assert any(told in what for what in found), found


GOOD = {"scores": score_arrays(), "cells": cell_arrays(), "small cells": small_cell_arrays(), "pca": pca_arrays()}


@pytest.mark.parametrize("kind", RECIPES)
def test_good_content_is_published_and_found_again(quick_folder: Path, kind: str) -> None:
    assert not make_it(quick_folder / "store", kind, GOOD[kind], {})
    assert make_it(quick_folder / "store", kind, GOOD[kind], {})
    assert problems(Store.open(quick_folder / "store")) == []


@pytest.mark.parametrize("wrong", [None, *range(7)])
def test_cells_of_rows_are_checked_in_blocks(quick_folder: Path, monkeypatch: pytest.MonkeyPatch, wrong: int | None) -> None:
    monkeypatch.setattr("mmdiff.formats.store.checks._BLOCK", 3)
    arrays = small_cell_arrays()
    if wrong is None:
        assert not make_it(quick_folder / "store", "small cells", arrays, {})
        return
    arrays["cell_of"][wrong] ^= 1
    with pytest.raises(BadResult, match=rf"cell_of: row {wrong}: not the cell that the offsets say"):
        make_it(quick_folder / "store", "small cells", arrays, {})


def test_refused_result_leaves_the_artifact_that_has_its_name(quick_folder: Path) -> None:
    path = quick_folder / "store"
    publish(path, SCORES, score_arrays(), Recipe("scores", 1, SCORE_PARAMETERS | {"before": True}, {}), SCORE_FACTS)
    before = tree(path)
    with pytest.raises(BadResult):
        make_it(path, "scores", score_arrays(top_scores=np.full((5, 2), NAN)), {})
    assert tree(path) == before


def test_diffusion_that_does_not_say_its_iterations_is_found(quick_folder: Path) -> None:
    recipe = Recipe("scores", 1, {"method": "diffusion"}, {})
    publish(quick_folder / "store", SCORES, score_arrays(), recipe, SCORE_FACTS)
    found = problems(Store.open(quick_folder / "store"))
    assert [problem.what for problem in found] == ["the manifest does not say how many iterations there are"]


@pytest.mark.parametrize("iterations", ["5", 1.0, True, [1], None])
def test_column_sums_of_iterations_that_are_no_number_are_found(quick_folder: Path, iterations: Any) -> None:
    recipe = Recipe("scores", 1, {"method": "logreg", "iterations": iterations}, {})
    publish(quick_folder / "store", SCORES, score_arrays(), recipe, SCORE_FACTS)
    found = problems(Store.open(quick_folder / "store"))
    assert [problem.what for problem in found] == ["the manifest does not say how many iterations there are"]


def test_roles_that_do_not_add_up_to_the_nodes_are_found(quick_folder: Path) -> None:
    graph = {"indptr": np.array([0, 1, 2]), "indices": np.array([0, 1], np.uint32), "scale": np.ones(2, np.float32)}
    facts = {"nodes": 2, "edges": 2, "background": 1, "seeds": 2, "test": 0, "reciprocal": 1.0}
    publish(quick_folder / "store", "graph/W", graph, Recipe("graph", 1, {}, {}), facts)
    found = problems(Store.open(quick_folder / "store"))
    assert [problem.what for problem in found] == ["2 nodes, where the manifest says 1 + 0 + 2 + 0"]


@pytest.mark.parametrize(
    ("draws", "facts", "problem"),
    [
        (None, {"lines": []}, "the manifest lacks the parameter 'draws'"),
        (True, {"lines": []}, "the manifest lacks the parameter 'draws'"),
        (-1, {"lines": []}, "the manifest does not say which lines and draws there are"),
        (2, {"lines": 5}, "the manifest lacks the fact 'lines'"),
        (2, {}, "the manifest lacks the fact 'lines'"),
    ],
)
def test_report_that_does_not_say_its_lines_and_draws_is_found(
    quick_folder: Path, draws: int | None, facts: Json, problem: str
) -> None:
    arrays: Arrays = {
        "planes": np.zeros((0, 6), np.int64),
        "offsets": np.zeros(1, np.int64),
        "keys": np.zeros((0, 12), np.uint8),
    }
    parameters: Json = {"draws": draws, "n": [], "methods": []}
    publish(quick_folder / "store", "reports/x", arrays, Recipe("report", 1, parameters, {}), {"tests": {}, **facts})
    found = problems(Store.open(quick_folder / "store"))
    assert [each.what.partition(",")[0] for each in found] == [problem]
