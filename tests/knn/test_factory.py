"""Faiss indexes from factory strings: recall, repeatability, and refusals."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mmdiff.formats.errors import BadOption, MissingExtra, Parameter
from mmdiff.knn.faiss_index.factory import FactoryIndex, doubling, recall_of, sample_rows, staircase
from mmdiff.runtime.progress import silent

K = 10
RECALL = 0.95
Truth = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]


@pytest.fixture(scope="module")
def clustered() -> Truth:
    """Rows in 60 clusters, some of them as queries, and their exact neighbours."""
    draw = np.random.default_rng(5)
    centres = draw.standard_normal((60, 32))
    rows = (centres[draw.integers(0, 60, 4000)] + 0.7 * draw.standard_normal((4000, 32))).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    queries = rows[::20]
    return rows, queries, np.argsort(-(queries @ rows.T), axis=1, kind="stable")[:, :K]


def build(rows: NDArray[np.float32 | np.float16], factory: str, seed: int = 0) -> FactoryIndex:
    return FactoryIndex.build(rows, factory, "cpu", seed, silent)


@pytest.mark.parametrize(
    ("factory", "tuned"),
    [
        ("Flat", set()),
        ("SQ8", set()),
        ("IVF32,Flat", {"nprobe"}),
        ("IVF32_HNSW16,Flat", {"nprobe"}),
        ("PCA24,IVF32,Flat,RFlat", {"nprobe", "k_factor_rf"}),
        ("IVF32,PQ16x4fsr,RFlat", {"nprobe", "k_factor_rf"}),
        ("PQ16x4fs,RFlat", {"k_factor_rf"}),
        ("HNSW16", {"efSearch"}),
    ],
)
def test_recall_is_reached_on_clustered_data_by_the_parameters_of_the_index(
    clustered: Truth, factory: str, tuned: set[str]
) -> None:
    rows, queries, truth = clustered
    index = build(rows, factory)
    result = index.tune(queries, truth, RECALL)
    assert result["reached"]
    assert result["recall"] >= RECALL
    assert set(result["parameters"]) == tuned
    similarities, found = index.search(queries, K)
    assert recall_of(found, truth) == result["recall"]
    assert similarities.dtype == np.float32
    assert found.dtype == np.int64
    parameters = index.parameters
    assert (parameters["factory"], parameters["device"], parameters["search"]) == (factory, "cpu", result["parameters"])


def test_flat_index_is_exact(clustered: Truth) -> None:
    rows, queries, truth = clustered
    similarities, found = build(rows, "Flat").search(queries, K)
    assert recall_of(found, truth) == 1.0
    np.testing.assert_allclose(similarities, np.take_along_axis(queries @ rows.T, found, axis=1), atol=1e-5)


def test_first_number_of_cells_that_reaches_the_recall_is_taken(clustered: Truth) -> None:
    rows, queries, truth = clustered
    tried = build(rows, "IVF32,Flat").tune(queries, truth, 0.999)["tried"]
    assert [trial["nprobe"] for trial in tried] == [2**step for step in range(len(tried))]
    assert all(trial["recall"] < 0.999 for trial in tried[:-1])
    assert tried[-1]["recall"] >= 0.999


def test_recall_out_of_reach_gives_the_best_there_is_and_says_so(clustered: Truth) -> None:
    rows, queries, truth = clustered
    index = build(rows, "IVF32,PQ4x4")
    result = index.tune(queries, truth, RECALL)
    assert not result["reached"]
    assert result["recall"] == max(trial["recall"] for trial in result["tried"]) < RECALL
    assert recall_of(index.search(queries, K)[1], truth) == result["recall"]


def test_half_precision_rows_give_the_lists_of_single_precision_rows_but_for_rounding(clustered: Truth) -> None:
    rows, queries, truth = clustered
    halves = rows.astype(np.float16)
    lists = []
    for matrix in (rows, halves, halves.astype(np.float32)):
        index = build(matrix, "IVF32,Flat")
        index.tune(queries, truth, 0.99)
        lists.append(index.search(queries, K))
    (similarities, found), (half_similarities, half_found), (rounded_similarities, rounded_found) = lists
    np.testing.assert_array_equal(half_found, rounded_found)
    np.testing.assert_array_equal(half_similarities, rounded_similarities)
    assert recall_of(half_found, found) > 0.97
    same = half_found == found
    np.testing.assert_allclose(half_similarities[same], similarities[same], atol=2e-3)


@pytest.mark.parametrize("factory", ["IVF32,Flat", "PCA16,IVF32,PQ4x5", "IVF32,PQ16x4fsr,RFlat"])
def test_equal_seeds_give_equal_lists(clustered: Truth, factory: str) -> None:
    rows, queries, truth = clustered
    first, second = (build(rows, factory, seed=7) for _ in range(2))
    assert first.tune(queries, truth, RECALL) == second.tune(queries, truth, RECALL)
    for one, other in zip(first.search(queries, K), second.search(queries, K), strict=True):
        np.testing.assert_array_equal(one, other)


def test_another_seed_trains_other_cells(clustered: Truth) -> None:
    rows, queries, _ = clustered
    first, second = (build(rows, "IVF32,Flat", seed).search(queries, K)[1] for seed in (0, 1))
    assert (first != second).any()


def test_rows_are_read_from_a_read_only_map_in_blocks(
    clustered: Truth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, queries, _ = clustered
    np.save(tmp_path / "rows.npy", rows)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    whole = build(rows, "IVF32,Flat").search(queries, K)
    monkeypatch.setattr("mmdiff.knn.faiss_index.factory.BLOCK_BYTES", 4 * 32 * 999)
    for one, other in zip(build(mapped, "IVF32,Flat").search(queries, K), whole, strict=True):
        np.testing.assert_array_equal(one, other)


def test_training_sample_is_bounded_by_memory_but_not_below_39_rows_for_a_centroid(
    clustered: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmdiff.knn.faiss_index.factory.TRAIN_BYTES", 1)
    index = build(np.tile(clustered[0], (4, 1)), "IVF32,Flat")
    assert index.parameters["training"] == {"rows": 39 * 256, "device": "cpu"}


def test_sample_has_a_row_of_each_stretch() -> None:
    picked = sample_rows(1003, 100, seed=3)
    np.testing.assert_array_equal(picked, sample_rows(1003, 100, seed=3))
    assert (picked != sample_rows(1003, 100, seed=4)).any()
    assert ((picked - np.arange(100) * 1003 // 100 >= 0) & (picked < np.arange(1, 101) * 1003 // 100)).all()
    np.testing.assert_array_equal(sample_rows(5, 100, seed=3), np.arange(5))


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        ("bogus", "could not parse index string bogus"),
        ("", "could not parse index string"),
        ("IVF32,PQ7", "The dimension of the vector (d) should be a multiple of the number of subquantizers (M)"),
        ("LSH", "'metric == METRIC_L2' failed"),
        ("PCA64,Flat", "PCA matrix cannot output 64 dimensions from 32"),
        ("IDMap,Flat", "add does not make sense with IndexIDMap, use add_with_ids"),
        ("PQ4x14", "Number of training points (4000) should be at least as large as number of clusters (16384)"),
        ("x" * 5000, "could not parse index string " + "x" * 5000),
        ("IVF" + "9" * 5000 + ",Flat", "C++ exception stoi"),
    ],
)
def test_what_faiss_rejects_is_refused_with_its_reason(clustered: Truth, factory: str, reason: str) -> None:
    with pytest.raises(BadOption) as refusal:
        build(clustered[0], factory)
    instead = "Use auto, flat, or a factory string such as IVF4096,Flat."
    assert str(refusal.value) == f"{Parameter('index', factory)}: faiss rejects it ({reason}). {instead}"
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize("factory", ["HNSW0", "HNSW1", "IVF0,Flat", "IVF32,PQ8x0"])
def test_what_would_make_faiss_end_the_process_is_refused(clustered: Truth, factory: str) -> None:
    with pytest.raises(BadOption, match="a count in it is too small"):
        build(clustered[0], factory)


@pytest.mark.parametrize(
    ("factory", "cells"), [("IVF4001,Flat", "4,001"), ("PCA16,IVF4k,PQ8", "4,096"), ("IVF2000000000,Flat", "2,000,000,000")]
)
def test_more_cells_than_rows_are_refused_with_both_numbers(clustered: Truth, factory: str, cells: str) -> None:
    with pytest.raises(BadOption, match=f"{cells} cells cannot be trained on 4,000 rows.*fewer cells.*IVF102"):
        build(clustered[0], factory)


def test_an_index_file_is_refused(clustered: Truth, tmp_path: Path) -> None:
    path = tmp_path / "run_0.faiss"
    path.write_bytes(b"IxFI")
    with pytest.raises(BadOption, match=r"this is a file, and mmdiff builds its own index.*Use auto, flat, or"):
        build(clustered[0], str(path))


def test_absent_faiss_gives_the_line_that_installs_it(clustered: Truth, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtra, match=r"building the graph needs faiss.*pip install 'mmdiff\[cpu\]'"):
        build(clustered[0], "Flat")


def test_recall_counts_neighbours_that_exist() -> None:
    truth = np.array([[0, 1, 2], [3, 4, -1]])
    assert recall_of(truth, truth) == 1.0
    assert recall_of(np.array([[4, -1, 2], [-1, 1, 0]]), truth) == 1 / 5
    assert recall_of(np.array([[5, 6]]), np.array([[-1]])) == 1.0


def test_doubling_ends_at_the_last() -> None:
    assert doubling(1, 20) == [1, 2, 4, 8, 16, 20]
    assert doubling(30, 30) == [30]


def test_staircase_finds_the_cheapest_pair_that_any_search_of_all_pairs_finds() -> None:
    probes, factors = doubling(1, 1024), doubling(1, 64)
    draw = np.random.default_rng(2)
    for _ in range(200):
        reach, refine, price = draw.uniform(1, 200), draw.uniform(0.1, 20), draw.uniform(0.1, 30)

        def measure(probe: int, factor: int, reach: float = reach, refine: float = refine) -> float:
            return float((1 - np.exp(-probe / reach)) * (1 - np.exp(-factor / refine)))

        def cost(probe: int, factor: int, price: float = price) -> float:
            return probe + price * factor

        best, trials = staircase(measure, cost, probes, factors, 0.9)
        reaching = [cost(probe, factor) for probe in probes for factor in factors if measure(probe, factor) >= 0.9]
        if reaching:
            assert best.cost == min(reaching)
        else:
            assert best.recall == max(measure(probe, factor) for probe in probes for factor in factors)
        assert len(trials) <= len(probes) + len(factors)
