"""The diffusion compared with scikit-learn's label spreading, and with float64 on real descriptors."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from numpy.typing import NDArray

from mmdiff.building.stage import Request as Build
from mmdiff.building.stage import build_graph
from mmdiff.diffusion.api import diffuse as diffuse_arrays
from mmdiff.diffusion.stage import Request, diffuse
from mmdiff.formats.store.store import Store
from mmdiff.graph.graph import CsrGraph
from mmdiff.graph.import_graph import Request as ImportGraph
from mmdiff.graph.import_graph import import_graph
from mmdiff.importing.stage import Request as Import
from mmdiff.importing.stage import import_descriptors
from tests.support.paths import REAL, SAMPLE

TOP, T = 5, 4


def affinity(nodes: int, seed: int) -> NDArray[np.float64]:
    """A symmetric matrix without a diagonal, with some isolated nodes."""
    draw = np.random.default_rng(seed)
    one_way = draw.random((nodes, nodes)) * (draw.random((nodes, nodes)) < 4 / nodes)
    both = one_way + one_way.T
    np.fill_diagonal(both, 0)
    both[draw.random(nodes) < 0.05] = 0
    return np.minimum(both, both.T)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("in_store", [False, True])
def test_symmetric_graph_and_alpha_give_the_label_spreading_of_scikit_learn(tmp_path: Path, seed: int, in_store: bool) -> None:
    semi_supervised = pytest.importorskip("sklearn.semi_supervised", reason="scikit-learn is not installed")
    exceptions = pytest.importorskip("sklearn.exceptions", reason="scikit-learn is not installed")
    nodes, iterations = 200, 6
    A, draw = affinity(nodes, seed), np.random.default_rng(seed)
    labels = np.where(draw.random(nodes) < 0.1, draw.integers(0, 4, nodes), -1)
    labels[:4] = range(4)
    peer = semi_supervised.LabelSpreading(kernel=lambda *_: A, alpha=0.8, max_iter=iterations, tol=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
        peer.fit(np.arange(nodes)[:, None], labels)
    assert peer.n_iter_ == iterations
    options: dict[str, Any] = {"iterations": iterations, "eta": "none", "alpha": 0.8, "normalize_graph": "symmetric"}
    L = from_a_store(tmp_path, A, labels, options) if in_store else in_memory(A, labels, options)
    sums = L.sum(axis=1, keepdims=True)
    # scikit-learn normalises rows at the end; its state, like ours, is not normalised between iterations.
    shares = np.divide(L, sums, out=np.zeros_like(L, dtype=np.float64), where=sums > 0)
    np.testing.assert_allclose(shares, peer.label_distributions_, rtol=1e-5, atol=1e-9)
    reached = sums[:, 0] > 0
    np.testing.assert_array_equal(L.argmax(axis=1)[reached], peer.transduction_[reached])


def in_memory(A: NDArray[Any], labels: NDArray[Any], options: dict[str, Any]) -> NDArray[np.float32]:
    return diffuse_arrays(CsrGraph.from_scipy(scipy.sparse.csr_array(A)), labels, **options)


def from_a_store(folder: Path, A: NDArray[Any], labels: NDArray[Any], options: dict[str, Any]) -> NDArray[np.float32]:
    """The scores of all nodes as predictions: four classes, so that all of them are among the best five."""
    scipy.sparse.save_npz(folder / "A.npz", scipy.sparse.csr_array(A))
    np.save(folder / "labels.npy", labels)
    import_graph(folder / "store", ImportGraph(folder / "A.npz"))
    request = Request(labels=str(folder / "labels.npy"), predict_nodes=folder / "p.parquet", **options)
    artifact = diffuse(folder / "store", request).artifact
    classes, scores = artifact.array("top_classes"), artifact.array("top_scores")
    L = np.zeros((len(labels), 5), np.float32)
    np.put_along_axis(L, np.where(classes < 0, 4, classes), scores, axis=1)
    return L[:, :4]


def real_files(folder: Path) -> dict[str, tuple[str, str | None]]:
    """Vectors and labels of each role: a part of Tiny ImageNet, or the sample in the repository."""
    if not REAL.is_dir():
        return {
            "background": (str(SAMPLE / "background.npy"), None),
            "seeds": (str(SAMPLE / "seeds.npy"), str(SAMPLE / "seed_labels.npy")),
            "test": (str(SAMPLE / "test.npy"), None),
        }
    features, labels = np.load(REAL / "train_features.npy", mmap_mode="r"), np.load(REAL / "train_labels.npy")
    order = np.random.default_rng(0).permutation(len(labels))
    seeds = np.concatenate([order[labels[order] == label][:2] for label in range(200)])
    background = np.setdiff1d(order, seeds)[::9]
    np.save(folder / "background.npy", features[background])
    np.save(folder / "seeds.npy", features[np.sort(seeds)])
    np.save(folder / "seed_labels.npy", labels[np.sort(seeds)])
    np.save(folder / "test.npy", np.load(REAL / "val_features.npy", mmap_mode="r")[::4])
    return {
        "background": (str(folder / "background.npy"), None),
        "seeds": (str(folder / "seeds.npy"), str(folder / "seed_labels.npy")),
        "test": (str(folder / "test.npy"), None),
    }


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("real")
    for role, (vectors, labels) in real_files(folder).items():
        import_descriptors(folder / "store", Import([vectors], role, labels=labels))  # type: ignore[arg-type]
    build_graph(folder / "store", Build(k=30, index="flat"))
    return folder / "store"


def float64_scores(path: Path) -> NDArray[np.float64]:
    """V L after T iterations, in float64 with scipy."""
    store = Store.open(path)
    graph, seeds, lists = (store.open_artifact(name) for name in ("graph/W", "descriptors/seeds", "knn/test"))
    A = CsrGraph.from_artifact(graph).to_scipy(normalized=False).astype(np.float64)
    W = scipy.sparse.diags_array(1 / np.asarray(A.sum(axis=1)).reshape(-1)) @ A
    labels, neighbors = seeds.array("labels"), lists.array("neighbors")
    L = np.zeros((A.shape[0], labels.max() + 1))
    L[graph.manifest.facts["background"] + np.arange(len(labels)), labels] = 1
    for _ in range(T):
        L = W @ L
        L /= L.sum(axis=0)
    points = np.repeat(np.arange(len(neighbors)), neighbors.shape[1])
    V = scipy.sparse.csr_array((np.ones(len(points)), (points, neighbors.reshape(-1))), (len(neighbors), len(L)))
    return np.asarray(V @ L)


def best(scores: NDArray[Any]) -> NDArray[np.int64]:
    return np.sort(np.argsort(-scores, axis=1, kind="stable")[:, :TOP], axis=1)


def test_best_five_of_real_test_points_are_those_of_float64(real: Path) -> None:
    expected = float64_scores(real)
    for plain in (False, True):
        scores = diffuse(real, Request(iterations=T, plain=plain, keep_scores="last")).artifact.array("scores")[0]
        np.testing.assert_allclose(scores, expected, rtol=1e-5)
        np.testing.assert_array_equal(best(scores), best(expected))


def test_bfloat16_agrees_on_the_best_five_of_almost_all_real_test_points(real: Path) -> None:
    exact, short = (
        diffuse(real, Request(iterations=T, dtype=dtype)).artifact.array("scores") for dtype in ("float32", "bfloat16")
    )
    shares = [(best(exact[t]) == best(short[t])).all(axis=1).mean() for t in range(T + 1)]
    print(f"bfloat16: {100 * shares[-1]:.2f} % of {exact.shape[1]:,} test points have the same best five", shares)  # noqa: T201
    assert shares[0] == 1
    assert min(shares) >= 0.995
