"""The labelling loop: what is labelled is on disk before the page answers, and predictions follow, whatever happens."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

import mmdiff
from mmdiff.formats.store.gc import discard
from mmdiff.formats.store.store import Store
from tests.support.served import PATIENCE, Served, serve
from tests.support.stores import MEMORY, problems

ROWS, KINDS = 120, 3


@pytest.fixture
def store() -> Iterator[mmdiff.Store]:
    """Rows of three kinds, with a graph and without labels."""
    with TemporaryDirectory(dir=MEMORY) as folder:
        made = mmdiff.open(Path(folder) / "store", create=True)
        made.add(rows())
        made.build_graph(k=6)
        yield made


def rows() -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.random.default_rng(1).normal(size=(ROWS, 8)) + 5 * np.eye(8)[np.arange(ROWS) % KINDS]


def settled(page: Served, labelled: int) -> None:
    """Waits until everything follows from so many labels."""
    page.wait(lambda status: status["state"] == "idle" and (not labelled or status["history"][-1]["labelled"] == labelled))


def test_a_session_from_nothing_to_labels_and_back(store: mmdiff.Store) -> None:
    with serve(store.path) as page:
        settled(page, 0)
        assert 0 < page.ask("suggestions")["total"] <= ROWS
        assert page.ask("classes") == {"classes": []}
        before = page.ask("status")["version"]
        for kind in range(KINDS):
            found = page.label([kind, kind + KINDS], f"kind {kind}")
            assert (found["batch"], found["labelled"], found["classes"], found["changed"]) == (
                kind,
                2 * kind + 2,
                kind + 1,
                True,
            )
        settled(page, 2 * KINDS)
        status = page.ask("status")
        assert status["version"] > before
        assert status["accuracy"] == {"top1": 1.0, "low": 1.0, "high": 1.0, "rows": 2 * KINDS}
        assert status["coverage"] == {"reached": ROWS, "rows": ROWS}
        assert status["balance"] == [{"label": f"kind {kind}", "given": 2} for kind in range(KINDS)]
        found = page.ask("search", count=ROWS)["rows"]
        assert [row["label"] for row in found] == [f"kind {row % KINDS}" for row in range(ROWS)]
        assert [row["source"] for row in found] == ["given"] * 6 + ["predicted"] * (ROWS - 6)
        assert not {row["row"] for row in page.ask("suggestions", count=ROWS)["rows"]} & set(range(2 * KINDS))
        assert sum(each["predicted"] for each in page.ask("classes")["classes"]) == ROWS - 2 * KINDS

        # Several classes are one batch too.
        several = [{"rows": [9], "labels": ["kind 0", "kind 1"]}, {"rows": [11, 14], "labels": ["kind 2"]}]
        assert page.post("label", {"changes": several}).document["labelled"] == 2 * KINDS + 3
        assert [page.ask("row", row=row, path=0)["given"] for row in (9, 14)] == [["kind 0", "kind 1"], ["kind 2"]]
        assert page.post("undo", {}).document["undone"] == {"rows": [9, 11, 14]}

        assert page.label([0], "kind 0")["changed"] is False
        assert page.label([0])["labelled"] == 2 * KINDS - 1
        assert page.ask("row", row=0, path=0)["given"] == []
        taken = page.post("undo", {}).document
        assert (taken["undone"], taken["labelled"], taken["batches"]) == ({"rows": [0]}, 2 * KINDS, KINDS)
        history = page.ask("row", row=0, path=0)["history"]
        assert [(entry["batch"], entry["source"], entry["labels"]) for entry in history] == [(0, "browse", ["kind 0"])]

        # Labels of another process are seen at once, followed, and not for this page to take back.
        version = page.ask("status")["version"]
        store.label({9: "kind 0"})
        assert page.ask("row", row=9, path=0)["given"] == ["kind 0"]
        assert page.ask("status")["version"] > version
        settled(page, 2 * KINDS + 1)
        refused = page.post("undo", {})
        assert (refused.status, refused.error) == (
            400,
            "The last labels came from python, not from here. Take them back with mmdiff label --undo.",
        )
    # What the page made and replaced is not left over, and what is left is sound.
    assert not problems(Store.open(store.path))
    assert len(store.gc(dry_run=True)["items"]) <= 2
    assert str(store["scores/diffusion"].run["command"]).startswith("mmdiff diffuse --predict-nodes --store ")


def test_labels_survive_a_killed_server_and_ctrl_c_ends_it(store: mmdiff.Store) -> None:
    with serve(store.path) as page:
        page.label([1, 2], "a")
        page.wait(lambda status: status["stage"] in ("diffusing", "evaluating", "suggesting"))
        page.label([3], "b")
        page.process.kill()
        page.process.wait()
    assert {row["id"]: row["labels"] for row in store.labels()["labels"]} == {1: ["a"], 2: ["a"], 3: ["b"]}
    with serve(store.path, "--json") as page:
        settled(page, 3)
        assert page.ask("row", row=1)["given"] == ["a"]
        page.process.send_signal(signal.SIGINT)
        _, notes = page.process.communicate(timeout=PATIENCE)
        assert page.process.returncode == 0
        assert notes.decode().splitlines() == [
            "mmdiff: open this address in a browser on this machine. It holds a secret token. Ctrl-C ends the page.",
            "mmdiff: the page is closed. All labels are in the store.",
        ]
    assert not problems(Store.open(store.path))


def test_a_store_that_is_rebuilt_underneath_is_followed(store: mmdiff.Store) -> None:
    store.label({0: "x", 3: "x", 1: "y"})
    with serve(store.path) as page:
        settled(page, 3)
        build = "import sys, mmdiff; mmdiff.open(sys.argv[1]).build_graph(k=9)"
        subprocess.run([sys.executable, "-c", build, str(store.path)], check=True)
        assert len(page.ask("row", row=6, path=0)["neighbours"]) >= 8
        page.wait(lambda status: status["state"] == "idle" and page.ask("row", row=6, path=0)["label"] == "x")
        # Other rows: the graph is of other rows now, and says so.
        store.add(rows()[:50])
        assert page.ask("store")["rows"] == 50
        assert page.get("row", row=60).status == 404
        status = page.wait(lambda status: status["message"] is not None)
        assert status["message"] == "graph/W was made of other rows than those of the store. Run again: mmdiff build-graph"
        found = page.ask("row", row=6)
        assert (found["neighbours"], found["label"], found["path"]) == ([], None, None)
        assert page.label([6], "z")["labelled"] == 4
        store.add(rows()[:3], role="seeds", labels=[0, 1, 2], class_names=["x", "y", "z"])
        store.build_graph(k=6)
        settled(page, 7)
        assert page.ask("row", row=5, path=0)["neighbours"]
        refused = page.post("label", {"rows": [50], "labels": ["x"]})
        assert (refused.status, refused.error) == (400, "Row 50 is a seed: labels of seeds come with their import.")
        assert page.post("label", {"rows": [1 << 40], "labels": ["x"]}).status == 400
        numbered = page.post("label", {"rows": [5], "labels": ["17"]})
        assert numbered.status == 400
        assert "is a number, but the classes of the store have names" in numbered.error


def test_without_a_graph_rows_are_labelled_and_a_disk_that_refuses_is_a_sentence(tmp_path: Path) -> None:
    store = mmdiff.open(tmp_path / "new", create=True)
    store.add(np.eye(6), ids=list("abcdef"))
    with serve(store.path) as page:
        assert (
            page.ask("store")["missing"] == "There is no graph yet that labels could spread over. Run first: mmdiff build-graph"
        )
        assert page.label([2], "x")["labelled"] == 1
        found = page.ask("row", row=2)
        assert (found["given"], found["neighbours"], found["path"]) == (["x"], [], None)
        assert page.ask("suggestions") == {"total": 0, "computing": False, "version": 0, "rows": []}
        status = page.ask("status")
        assert (status["state"], status["labelled"], status["accuracy"]) == ("idle", 1, None)

        (store.path / "scores").write_text("in the way")
        store.build_graph(k=3)
        status = page.wait(lambda status: status["state"] == "failed")
        assert "scores" in status["message"]
        assert page.label([1], "y")["labelled"] == 2
        (store.path / "scores").unlink()
        page.label([0], "x")
        settled(page, 3)
        assert page.ask("row", row=2)["neighbours"]


def test_only_objects_without_a_name_are_discarded(store: mmdiff.Store) -> None:
    files = Store.open(store.path)
    store.label({0: "a"})
    first = files.object_name("labels/current")
    assert first is not None
    discard(files, [first, "../../etc", "labels-" + "0" * 24])
    assert files.object_name("labels/current") == first
    assert store.labels()["labels"]
    store.label({1: "b"})
    discard(files, [first])
    assert not (files.objects / first).exists()
    assert not problems(files)
