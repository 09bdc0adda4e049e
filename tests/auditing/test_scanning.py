"""The kernels of the audit against their naive twins, and the thresholds that are found from lists."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mmdiff.auditing.doubts import doubts
from mmdiff.auditing.lists import Lists, Rows
from mmdiff.auditing.scanning import Matches, Scan, ordered_groups, roots_of
from mmdiff.auditing.thresholds import LEAST_ABOVE, MOST_ABOVE, duplicates_above, far_below, sampled
from mmdiff.formats.errors import Damaged
from mmdiff.graph.lists import ArrayLists
from mmdiff.runtime.progress import silent
from mmdiff.runtime.threads import limit_cores
from tests.support.naive_audit import NONE, naive_doubt, naive_groups, naive_matches, naive_outlying, naive_pairs, naive_table

ABOVE = 0.5


class Given(NamedTuple):
    """Lists of nodes, the row of each node of a background, and what is evaluated on and labelled."""

    neighbors: NDArray[np.uint32]
    similarities: NDArray[np.float32]
    order: NDArray[np.uint32]
    evaluated: NDArray[np.bool_]
    labelled: NDArray[np.bool_]

    @property
    def lists(self) -> Lists:
        return Lists(ArrayLists(self.neighbors, self.similarities), {}, len(self.neighbors))

    @property
    def rows(self) -> Rows:
        background = len(self.order)
        return Rows({"background": background, "appended": 0, "seeds": len(self.neighbors) - background, "test": 0}, self.order)

    @property
    def row_of(self) -> list[int]:
        return [*self.order.tolist(), *range(len(self.order), len(self.neighbors))]


@st.composite
def lists(draw: st.DrawFn) -> Given:
    """Lists with gaps, equal similarities, and nodes in their own lists or not."""
    nodes, k = draw(st.integers(1, 12)), draw(st.integers(1, 4))
    entry = st.one_of(st.integers(0, nodes - 1), st.just(NONE))
    neighbors = draw(st.lists(st.lists(entry, min_size=k, max_size=k, unique=True), min_size=nodes, max_size=nodes))
    values = st.sampled_from([0.25, 0.5, 0.75, 1.0])
    similarities = draw(st.lists(st.lists(values, min_size=k, max_size=k), min_size=nodes, max_size=nodes))
    background = draw(st.integers(0, nodes))
    masks = [draw(st.lists(st.booleans(), min_size=nodes, max_size=nodes)) for _ in range(2)]
    evaluated, labelled = (np.array(mask) for mask in masks)
    return Given(
        np.array(neighbors, np.uint32),
        np.array(similarities, np.float32),
        np.array(draw(st.permutations(range(background))), np.uint32),
        evaluated,
        labelled & ~evaluated,
    )


@given(lists())
def test_one_pass_finds_what_the_naive_twins_find(found: Given) -> None:
    nodes = len(found.neighbors)
    matches = Matches(found.rows, found.evaluated, found.labelled)
    scan = Scan.of(nodes, groups=True, matches=matches, outliers=True)
    scan.run(found.lists, ABOVE, silent)
    plain = found.neighbors.tolist(), found.similarities.tolist()
    pairs = naive_pairs(*plain, ABOVE)

    grouped = scan.groups.grouped
    assert {node: int(root) for node, root in zip(grouped.tolist(), roots_of(scan.groups.parents, grouped), strict=True)} == {
        node: min(group) for group in naive_groups(pairs) for node in group
    }
    rows = found.rows.of_nodes(grouped)
    places, group, represents = ordered_groups(rows, roots_of(scan.groups.parents, grouped), scan.groups.links[grouped])
    table = zip(
        group.tolist(),
        rows[places].tolist(),
        (represents != 0).tolist(),
        scan.groups.nearest[grouped[places]].tolist(),
        strict=True,
    )
    assert list(table) == naive_table(pairs, found.row_of)

    evaluated, labelled = (set(np.flatnonzero(mask).tolist()) for mask in (found.evaluated, found.labelled))
    best = matches.best
    assert {
        row: (other, value)
        for row, other, value in zip(best.nodes.tolist(), best.neighbors.tolist(), best.similarities.tolist(), strict=True)
    } == naive_matches(pairs, evaluated, labelled, found.row_of)

    means, named = naive_outlying(*plain)
    np.testing.assert_allclose(scan.means, means, rtol=1e-6)
    assert scan.named.tolist() == named


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_and_threads_change_nothing(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    draw = np.random.default_rng(2)
    neighbors = draw.integers(0, 300, (300, 6)).astype(np.uint32)
    similarities = draw.random((300, 6)).astype(np.float32)
    found = Lists(ArrayLists(neighbors, similarities), {}, 300)
    whole = Scan.of(300, groups=True, matches=None, outliers=True)
    whole.run(found, 0.98, silent)
    monkeypatch.setattr("mmdiff.auditing.lists.BLOCK_ENTRIES", 64)
    before = limit_cores(threads)
    try:
        blocked = Scan.of(300, groups=True, matches=None, outliers=True)
        blocked.run(found, 0.98, silent)
    finally:
        limit_cores(before)
    for one, other in ((whole.means, blocked.means), (whole.named, blocked.named)):
        np.testing.assert_array_equal(one, other)
    nodes = whole.groups.grouped
    np.testing.assert_array_equal(nodes, blocked.groups.grouped)
    np.testing.assert_array_equal(roots_of(whole.groups.parents, nodes), roots_of(blocked.groups.parents, nodes))


def test_a_list_that_names_no_node_is_refused_before_a_kernel_follows_it() -> None:
    class Artifact:
        name, remedy = "knn/BB", "Run again: mmdiff build-graph"

    neighbors = np.array([[0, 1], [7, NONE]], np.uint32)
    found = Lists(ArrayLists(neighbors), {"BB": Artifact()}, 2)  # type: ignore[dict-item]
    with pytest.raises(Damaged, match="the list of 1 names more than the 2 nodes"):
        Scan.of(2, groups=True, matches=None, outliers=False).run(found, 0.5, silent)


@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.5, 1.0]), min_size=4, max_size=4), min_size=1, max_size=8),
    st.data(),
)
def test_doubts_are_those_of_the_definition(scores: list[list[float]], data: st.DataObject) -> None:
    labels = [data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True).map(sorted)) for _ in scores]
    padded = np.array([own + [-1] * (2 - len(own)) for own in labels], np.int32)
    found = doubts(np.array(scores, np.float32), padded, "diffusion", np.arange(len(scores)))
    expected = {row: known for row, own in enumerate(labels) if (known := naive_doubt(scores[row], own)) is not None}
    assert sorted(found.places.tolist()) == sorted(expected)
    for place, label, best, doubt in zip(found.places, found.labels, found.predicted, found.doubt, strict=True):
        assert (int(label), int(best)) == expected[int(place)][:2]
        assert doubt == pytest.approx(expected[int(place)][2], abs=1e-5)
    assert (np.diff(found.doubt) <= 0).all()
    assert ((found.confidence >= 0) & (found.confidence <= found.predicted_confidence)).all()


def test_the_threshold_of_duplicates_lies_between_them_and_the_rest() -> None:
    draw = np.random.default_rng(0)
    usual = 1 - np.exp(draw.normal(-0.5, 0.15, 2000)) ** 2 / 2
    planted = np.full(200, 0.999)
    above = duplicates_above(np.concatenate([usual, planted]))
    assert usual.max() < above <= 0.999
    # Duplicates are in the lower tail of distances: they hardly move the threshold.
    assert above == pytest.approx(duplicates_above(usual), abs=0.02)
    assert duplicates_above(np.full(10, 0.1)) == LEAST_ABOVE
    assert duplicates_above(np.ones(10)) == MOST_ABOVE == duplicates_above(np.empty(0))


def test_rows_are_far_below_a_robust_threshold() -> None:
    means = np.concatenate([np.linspace(0.6, 0.8, 101), [0.01, 0.02]])
    assert 0.02 < far_below(means) < 0.6
    assert far_below(np.empty(0)) == -1


def test_the_sample_leaves_out_the_node_itself() -> None:
    neighbors = np.array([[0, 1, 2], [0, 2, 1], [NONE, NONE, 2]], np.uint32)
    similarities = np.array([[1, 0.5, 0.3], [0.5, 0.4, 1], [-np.inf, -np.inf, 1]], np.float32)
    nearest, means = sampled(Lists(ArrayLists(neighbors, similarities), {}, 3))
    np.testing.assert_allclose(nearest, [0.5, 0.5])
    np.testing.assert_allclose(means, [0.4, 0.45], rtol=1e-6)
