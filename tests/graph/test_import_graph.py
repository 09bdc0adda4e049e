"""`mmdiff import-graph`: graphs from elsewhere, as lists or as a matrix, and the messages for bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray
from typer.testing import CliRunner

from mmdiff.building.stage import Request as BuildRequest
from mmdiff.building.stage import build_graph
from mmdiff.cli import app
from mmdiff.formats.errors import UnreadableSource
from mmdiff.formats.sources.graphs import read_csr
from mmdiff.formats.store.store import Store
from mmdiff.graph.graph import CsrGraph
from mmdiff.graph.import_graph import Request, import_graph
from mmdiff.importing.stage import import_descriptors
from tests.support.graphs import SomeLists, some_lists
from tests.support.naive import naive_symmetrise, naive_weights
from tests.support.stores import make_inputs, problems, publish, recipe, tree

NODES, K = 60, 4


@pytest.fixture
def made() -> SomeLists:
    return some_lists(NODES, K)


def as_user_has_it(made: SomeLists) -> NDArray[np.int64]:
    return np.where(made.neighbors == 0xFFFFFFFF, -1, made.neighbors.astype(np.int64))


def write_vecs(file: Path, rows: NDArray[Any]) -> None:
    widths = np.full((len(rows), 1), rows.shape[1], "<i4")
    np.hstack([widths.view(np.uint8), np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)]).tofile(file)


def run(folder: Path, *arguments: str) -> Any:
    return CliRunner().invoke(app, ["import-graph", *arguments, "--store", str(folder / "store")])


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32"])
def test_lists_in_npy_become_the_graph_of_scipy(tmp_path: Path, made: SomeLists, dtype: str) -> None:
    np.save(tmp_path / "lists.npy", as_user_has_it(made).astype(dtype))
    outcome = run(tmp_path, str(tmp_path / "lists.npy"))
    assert outcome.exit_code == 0, outcome.output
    assert f"graph/W: {NODES} nodes" in outcome.stdout
    expected, _ = naive_symmetrise(made.neighbors)
    graph = CsrGraph.open(tmp_path / "store")
    np.testing.assert_array_equal(graph.to_scipy(normalized=False).toarray(), expected.toarray())
    assert problems(Store.open(tmp_path / "store")) == []
    assert "nothing to do" in run(tmp_path, str(tmp_path / "lists.npy")).stdout


def test_ivecs_and_npy_give_the_same_graph(tmp_path: Path, made: SomeLists) -> None:
    np.save(tmp_path / "lists.npy", as_user_has_it(made))
    write_vecs(tmp_path / "lists.ivecs", as_user_has_it(made).astype("<i4"))
    graphs = [import_graph(tmp_path / name, Request(tmp_path / f"lists.{name}")) for name in ("npy", "ivecs")]
    arrays = [outcome.artifact.manifest.arrays for outcome in graphs]
    assert arrays[0] == arrays[1]


@pytest.mark.parametrize(("metric", "ending"), [("distance", "fvecs"), ("similarity", "npy")])
def test_distances_and_similarities_become_weights(tmp_path: Path, made: SomeLists, metric: str, ending: str) -> None:
    np.save(tmp_path / "lists.npy", as_user_has_it(made))
    given = np.where(np.isfinite(made.similarities), made.similarities, 0)
    values = given if metric == "similarity" else np.sqrt(2 - 2 * given)
    if ending == "npy":
        np.save(tmp_path / "values.npy", values)
    else:
        write_vecs(tmp_path / "values.fvecs", values.astype("<f4"))
    options = ["--distances", str(tmp_path / f"values.{ending}"), "--metric", metric, "--edge-weights", "gaussian"]
    outcome = run(tmp_path, str(tmp_path / "lists.npy"), *options, "--sigma", "0.8", "--json")
    assert outcome.exit_code == 0, outcome.output
    weights = naive_weights(made.neighbors, made.similarities, "gaussian", 0.8)
    expected, _ = naive_symmetrise(made.neighbors, weights)
    graph = CsrGraph.open(tmp_path / "store")
    np.testing.assert_allclose(graph.to_scipy(normalized=False).toarray(), expected.toarray(), atol=1e-6)
    parameters = Store.open(tmp_path / "store").open_artifact("graph/W").manifest.parameters
    assert parameters == {"edge_weights": "gaussian", "sigma": 0.8, "weights_dtype": "float32", "metric": metric}


def test_matrix_comes_in_symmetric_or_is_made_so(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    dense = draw.random((NODES, NODES)) * (draw.random((NODES, NODES)) < 0.1)
    scipy.sparse.save_npz(tmp_path / "A.npz", scipy.sparse.csr_matrix(dense))
    summary = json.loads(run(tmp_path, str(tmp_path / "A.npz"), "--json").stdout)
    assert (summary["nodes"], summary["symmetrised"], summary["background"]) == (NODES, True, NODES)
    np.testing.assert_allclose(
        CsrGraph.open(tmp_path / "store").to_scipy(normalized=False).toarray(), dense + dense.T, rtol=1e-6
    )
    scipy.sparse.save_npz(tmp_path / "B.npz", scipy.sparse.csr_array(dense + dense.T), compressed=False)
    summary = json.loads(run(tmp_path, str(tmp_path / "B.npz"), "--json").stdout)
    assert (summary["symmetrised"], summary["reciprocal"]) == (False, 0.0)
    assert problems(Store.open(tmp_path / "store")) == []


def test_exported_graph_comes_back(tmp_path: Path, made: SomeLists) -> None:
    np.save(tmp_path / "lists.npy", as_user_has_it(made))
    run(tmp_path, str(tmp_path / "lists.npy"))
    before = CsrGraph.open(tmp_path / "store")
    file = str(tmp_path / "W.npz")
    assert CliRunner().invoke(app, ["export", "graph/W", file, "--store", str(tmp_path / "store")]).exit_code == 0
    assert run(tmp_path, file).exit_code == 0
    after = CsrGraph.open(tmp_path / "store")
    for name in ("indptr", "indices", "scale"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
    assert after.weights is None


def test_exported_graph_with_a_damaged_scale_is_refused(tmp_path: Path, made: SomeLists) -> None:
    matrix = scipy.sparse.csr_array(naive_symmetrise(made.neighbors)[0])
    arrays = {"format": b"csr", "shape": matrix.shape, "indptr": matrix.indptr, "indices": matrix.indices, "data": matrix.data}
    np.savez(tmp_path / "W.npz", row_scale=np.ones(3, np.float32), **arrays)
    outcome = run(tmp_path, str(tmp_path / "W.npz"))
    assert outcome.exit_code == 2
    assert "row_scale does not fit its rows" in outcome.stderr


@pytest.mark.parametrize(("row", "value"), [(0, np.inf), (0, np.nan), (0, -1), (0, 0), (2, np.inf), (2, -1)])
def test_row_scale_that_is_no_finite_number_is_refused_with_its_row(tmp_path: Path, row: int, value: float) -> None:
    scale = np.array([0.5, 0.5, 0], np.float32)
    arrays = {"format": b"csr", "shape": [3, 3], "indptr": [0, 1, 2, 2], "indices": [1, 0], "data": [0.5, 0.5]}
    np.savez(tmp_path / "W.npz", row_scale=scale, **arrays)  # type: ignore[arg-type]
    assert read_csr(tmp_path / "W.npz")[0].tolist() == [1, 1]
    scale[row] = value
    np.savez(tmp_path / "W.npz", row_scale=scale, **arrays)  # type: ignore[arg-type]
    with pytest.raises(UnreadableSource, match=rf"W\.npz, row {row}: row_scale {scale[row]}, expected a finite"):
        read_csr(tmp_path / "W.npz")


def test_nodes_are_the_background_then_the_seeds_then_test_points(tmp_path: Path) -> None:
    vectors = np.eye(8, dtype=np.float32)
    for role, rows in (("background", 8), ("seeds", 5), ("test", 3)):
        publish(tmp_path / "store", f"descriptors/{role}", {"vectors": vectors[:rows]}, recipe(role=role))
    for nodes, test in ((13, 0), (16, 3)):
        np.save(tmp_path / "lists.npy", some_lists(nodes, 3).neighbors.astype(np.int64).astype(np.int32))
        summary = json.loads(run(tmp_path, str(tmp_path / "lists.npy"), "--json").stdout)
        assert [summary[role] for role in ("background", "seeds", "test")] == [8, 5, test]
        assert bool(summary["notes"]) == (test == 0)
    np.save(tmp_path / "lists.npy", some_lists(14, 3).neighbors.astype(np.int64).astype(np.int32))
    outcome = run(tmp_path, str(tmp_path / "lists.npy"))
    assert outcome.exit_code == 2
    assert "14 nodes, but the store holds 8 background, 5 seeds, 3 test" in outcome.stderr
    publish(tmp_path / "store", "descriptors/seeds", {"vectors": vectors[:4]}, recipe(role="seeds"))
    shown = CliRunner().invoke(app, ["inspect", "graph/W", "--store", str(tmp_path / "store"), "--json"]).stdout
    assert json.loads(shown)["stale"] == ["descriptors/seeds has changed since", "lists.npy has changed since"]


def test_test_points_that_are_no_nodes_are_told_and_not_forgotten(tmp_path: Path) -> None:
    vectors = np.eye(8, dtype=np.float32)
    for role, rows in (("background", 8), ("test", 3)):
        publish(tmp_path / "store", f"descriptors/{role}", {"vectors": vectors[:rows]}, recipe(role=role))
    np.save(tmp_path / "lists.npy", some_lists(8, 3).neighbors.astype(np.int64).astype(np.int32))
    for _ in range(2):
        told = run(tmp_path, str(tmp_path / "lists.npy")).stderr
        assert "the 3 test points are not nodes of this graph and will get no scores with it. Import a graph over all" in told


def test_matrix_over_the_users_rows_is_the_naive_W_in_that_order(tmp_path: Path) -> None:
    """A store whose own graph has a cell order imports a graph in the user's order all the same."""
    inputs = make_inputs(tmp_path / "inputs")
    for role in ("background", "seeds"):
        import_descriptors(tmp_path / "store", inputs.request(role))
    build_graph(tmp_path / "store", BuildRequest(k=5))
    assert CsrGraph.open(tmp_path / "store").order is not None
    made = some_lists(1200, 6, none=0, empty=0)
    rows = np.repeat(np.arange(1200), 6)
    W0 = scipy.sparse.csr_array((np.ones(rows.size), (rows, made.neighbors.reshape(-1))), (1200, 1200))
    W0.data[:] = 1
    scipy.sparse.save_npz(tmp_path / "W0.npz", W0)
    assert run(tmp_path, str(tmp_path / "W0.npz")).exit_code == 0
    graph = CsrGraph.open(tmp_path / "store")
    both, sums = naive_symmetrise(made.neighbors)
    assert graph.order is None
    np.testing.assert_allclose(graph.to_scipy().toarray(), both.toarray() / sums[:, None], rtol=1e-6)
    exported = np.concatenate([block.columns for block in graph.user_rows()])
    np.testing.assert_array_equal(exported, both.indices)


def test_inspect_tells_of_graphs_and_lists(tmp_path: Path, made: SomeLists) -> None:
    np.save(tmp_path / "lists.npy", as_user_has_it(made))
    run(tmp_path, str(tmp_path / "lists.npy"))
    arrays = {"neighbors": made.neighbors, "similarities": made.similarities}
    facts = {"nodes": NODES, "recall": 0.97}
    record = {"command": "a test", "started": "2026-01-01T00:00:00+00:00", "seconds": 1.0, "peak_memory": 1, "versions": {}}
    publish(tmp_path / "store", "knn/BB", arrays, recipe("knn"), facts, record)
    shown = CliRunner().invoke(app, ["inspect", "--store", str(tmp_path / "store")]).stdout
    assert f"{NODES} nodes" in shown
    assert f"{K} neighbours of {NODES} nodes" in shown
    shown = CliRunner().invoke(app, ["inspect", "graph/W", "--store", str(tmp_path / "store")]).stdout
    for part in ("degree", "median", "isolated nodes", "components", "nodes of the largest", "median rows apart"):
        assert part in shown
    shown = CliRunner().invoke(app, ["inspect", "knn/BB", "--store", str(tmp_path / "store")]).stdout
    for part in ("recall", "97.0%", "similarity of neighbour 1", "similarity of neighbour 2", f"similarity of neighbour {K}"):
        assert part in shown
    found = json.loads(CliRunner().invoke(app, ["inspect", "graph/W", "--store", str(tmp_path / "store"), "--json"]).stdout)
    degrees = np.diff(CsrGraph.open(tmp_path / "store").indptr)
    assert found["statistics"]["degree"]["max"] == degrees.max()


@dataclass(frozen=True)
class Case:
    """A user's files, the command they type, and parts of the message."""

    files: Callable[[Path], object]
    command: str
    told: tuple[str, ...]


def good_lists() -> NDArray[np.int64]:
    return np.stack([np.arange(20), (np.arange(20) + 1) % 20, (np.arange(20) + 5) % 20], axis=1)


def lists_with(row: int, value: int, **others: NDArray[Any]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        lists = good_lists()
        lists[row, 1] = value
        np.save(folder / "x.npy", lists)
        for name, values in others.items():
            np.save(folder / f"{name}.npy", values)

    return write


def npz_with(**changes: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        matrix = scipy.sparse.csr_array(np.eye(4) + np.eye(4, k=1))
        parts = {
            "format": np.array(b"csr"),
            "shape": np.array(matrix.shape),
            "indptr": matrix.indptr,
            "indices": matrix.indices,
            "data": matrix.data,
        }
        parts |= {name: change(parts[name].copy()) for name, change in changes.items()}
        np.savez(folder / "x.npz", **{name: part for name, part in parts.items() if part is not None})

    return write


def changed(at: int, value: float) -> Callable[[NDArray[Any]], NDArray[Any]]:
    def change(values: NDArray[Any]) -> NDArray[Any]:
        values[at] = value
        return values

    return change


def bytes_in(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def array_in(name: str, values: Any) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        with (folder / name).open("wb") as stream:
            np.save(stream, values, allow_pickle=True)

    return write


NOT_A_NUMBER = np.where(np.arange(60).reshape(20, 3) == 22, np.nan, 0.5)
GAUSSIAN = "--edge-weights gaussian --sigma 1"
CASES = {
    "id too large": Case(lists_with(17, 20), "x.npy", ("x.npy, row 17", "neighbour 20 of 20 nodes")),
    "id too small": Case(lists_with(3, -2), "x.npy", ("x.npy, row 3", "neighbour -2", "-1 for none")),
    "floats": Case(array_in("x.npy", np.ones((3, 2))), "x.npy", ("float64", "expected integers")),
    "one dimension": Case(array_in("x.npy", np.ones(3, int)), "x.npy", ("shape (3,)", "(nodes, k)")),
    "no rows": Case(array_in("x.npy", np.ones((0, 3), int)), "x.npy", ("holds no neighbours",)),
    "pickle": Case(array_in("x.npy", np.array([{}])), "x.npy", ("a pickle",)),
    "not npy": Case(bytes_in("x.npy", b"hello" * 100), "x.npy", ("not a .npy file",)),
    "truncated ivecs": Case(bytes_in("x.ivecs", b"\3\0\0\0" + bytes(9)), "x.ivecs", ("truncated",)),
    "other width in ivecs": Case(
        bytes_in("x.ivecs", b"\1\0\0\0" + bytes(4) + b"\2\0\0\0" + bytes(4)), "x.ivecs", ("row 1", "width of 2")
    ),
    "other ending": Case(bytes_in("x.txt", b"1 2 3"), "x.txt", (".npz, .ivecs, .npy",)),
    "no file": Case(lambda _: None, "x.npz", ("x.npz", "no such file")),
    "no lists": Case(lambda _: None, "x.npy", ("x.npy", "no such file")),
    "distances of another shape": Case(
        lists_with(0, 1, d=np.ones((20, 2), np.float32)), f"x.npy --distances d.npy {GAUSSIAN}", ("20 x 2", "20 x 3")
    ),
    "NaN among distances": Case(
        lists_with(0, 1, d=NOT_A_NUMBER), f"x.npy --distances d.npy {GAUSSIAN}", ("d.npy, row 7", "nan", "finite")
    ),
    "negative distance": Case(
        lists_with(0, 1, d=-np.ones((20, 3))), f"x.npy --distances d.npy {GAUSSIAN}", ("row 0", "--metric similarity")
    ),
    "distances for nothing": Case(
        lists_with(0, 1, d=np.ones((20, 3))), "x.npy --distances d.npy", ("--distances", "--edge-weights")
    ),
    "weights from nothing": Case(lists_with(0, 1), f"x.npy {GAUSSIAN}", ("--distances FILE",)),
    "vanishing weights": Case(
        lists_with(0, 1, x=np.tile(np.arange(20), (20, 1)), d=np.ones((20, 20))),
        "x.npy --distances d.npy --edge-weights meaningful --lambda 0.001",
        ("--lambda 0.001", "k = 20", "or more"),
    ),
    "little memory": Case(lists_with(0, 1), "x.npy --memory 1M", ("--memory", "20 nodes", "at least")),
    "weights of a matrix": Case(npz_with(), f"x.npz {GAUSSIAN}", ("holds its own weights",)),
    "not a zip": Case(bytes_in("x.npz", b"PK\3\4 and no more"), "x.npz", ("not an .npz file",)),
    "a npy called npz": Case(array_in("x.npz", np.ones(3)), "x.npz", ("not an .npz file",)),
    "pickle in npz": Case(npz_with(data=lambda _: np.array([{}] * 7)), "x.npz", ("not an .npz file", "save_npz")),
    "no sparse matrix": Case(npz_with(indptr=lambda _: None), "x.npz", ("'indptr' is missing", "save_npz")),
    "another format": Case(npz_with(format=lambda _: np.array(b"csc")), "x.npz", ("'csc'", "tocsr")),
    "not square": Case(npz_with(shape=lambda _: np.array([4, 9])), "x.npz", ("4 x 9, not square",)),
    "shape of floats": Case(npz_with(shape=lambda _: np.array([4.0, 4.0])), "x.npz", ("not integers",)),
    "negative weight": Case(npz_with(data=changed(2, -3)), "x.npz", ("x.npz, row 1", "-3")),
    "NaN weight": Case(npz_with(data=changed(6, np.nan)), "x.npz", ("x.npz, row 3", "nan")),
    "column too large": Case(npz_with(indices=changed(3, 4)), "x.npz", ("x.npz, row 1", "column 4 of 4")),
    "offsets go back": Case(npz_with(indptr=changed(1, 6)), "x.npz", ("row 1", "backwards")),
    "offsets too long": Case(npz_with(indptr=changed(4, 9)), "x.npz", ("do not fit its 4 rows",)),
    "columns without values": Case(npz_with(data=lambda data: data[:-1]), "x.npz", ("7 columns for 6 values",)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bad_input_is_told_and_leaves_the_store_as_it_was(tmp_path: Path, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "good.npy", good_lists())
    assert run(tmp_path, "good.npy").exit_code == 0
    before = tree(tmp_path / "store")
    case.files(tmp_path)
    outcome = run(tmp_path, *case.command.split())
    assert outcome.exit_code == 2, outcome.output
    for part in case.told:
        assert part in outcome.stderr
    assert outcome.stderr.strip().endswith((".", "`", ")"))
    assert tree(tmp_path / "store") == before


def test_bad_input_makes_no_store(tmp_path: Path) -> None:
    lists_with(17, 20)(tmp_path)
    assert run(tmp_path, str(tmp_path / "x.npy")).exit_code == 2
    assert not (tmp_path / "store").exists()


def test_graph_over_imported_descriptors_is_accepted(tmp_path: Path) -> None:
    inputs = make_inputs(tmp_path / "inputs")
    import_descriptors(tmp_path / "store", inputs.request())
    np.save(tmp_path / "lists.npy", some_lists(600, 5, none=0, empty=0).neighbors.astype(np.int32))
    assert run(tmp_path, str(tmp_path / "lists.npy")).exit_code == 0
    assert Store.open(tmp_path / "store").names() == ["descriptors/background", "graph/W", "models/pca"]


def test_lists_whose_graph_does_not_fit_the_disk_are_refused_before_it_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five edges of 4 bytes for each node, and 12 bytes. Entries that are missing or repeated take no room."""
    monkeypatch.setattr("mmdiff.formats.storage.seam.free_bytes", lambda _: 50_000)
    full, few = tmp_path / "full.npy", tmp_path / "few.npy"
    rows = (np.arange(2000)[:, None] + np.arange(1, 6)) % 2000
    np.save(full, rows)
    refused = run(tmp_path, str(full))
    assert refused.exit_code == 1
    assert "graph/W: about 64,000 bytes of disk are needed" in refused.stderr
    assert not (tmp_path / "store").exists()
    distances = tmp_path / "distances.npy"
    np.save(distances, np.ones((2000, 5), np.float32))
    refused = run(tmp_path, str(full), "--distances", str(distances), "--edge-weights", "gaussian", "--sigma", "1")
    assert "graph/W: about 104,000 bytes of disk are needed" in refused.stderr
    np.save(few, np.where(np.arange(5) % 2, -1, rows[:, :1]))
    accepted = run(tmp_path, str(few))
    assert accepted.exit_code == 0, accepted.output
