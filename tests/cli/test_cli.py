"""The command line as a user meets it: quick help, results on stdout, JSON on everything that reports, a polite Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mmdiff.cli import app
from mmdiff.formats.store.store import Store
from tests.support.stores import make_inputs, make_store, problems, tree

PROGRAM = Path(sys.executable).parent / "mmdiff"
HEAVY = ("numpy", "numba", "scipy", "zarr", "pyarrow", "h5py", "rich.progress")


@pytest.fixture
def store(tmp_path: Path) -> str:
    make_store(tmp_path / "store", make_inputs(tmp_path / "inputs"))
    return str(tmp_path / "store")


def test_help_imports_nothing_heavy() -> None:
    script = f"import sys, mmdiff.cli; sys.exit(any(name in sys.modules for name in {HEAVY}))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


@pytest.mark.parametrize(
    "command",
    ["inspect", "inspect descriptors/seeds", "inspect models/pca", "inspect descriptors/seeds --rows 5:7", "verify", "gc"],
)
def test_every_report_can_be_had_as_json(command: str, store: str) -> None:
    outcome = CliRunner().invoke(app, [*command.split(), "--store", store, "--json"])
    assert outcome.exit_code == 0, outcome.output
    assert json.loads(outcome.stdout)
    assert outcome.stderr == ""


def test_import_reports_as_json(tmp_path: Path, store: str) -> None:
    arguments = [str(tmp_path / "inputs" / "others.npy"), "--role", "test", "--store", store, "--json"]
    first, again = (json.loads(CliRunner().invoke(app, ["import", *arguments]).stdout) for _ in range(2))
    assert (first["artifact"], first["shape"], first["reused"]) == ("descriptors/test", [600, 8], False)
    assert again["reused"]


def test_inspect_shows_what_things_are_and_whether_they_are_current(tmp_path: Path, store: str) -> None:
    shown = CliRunner().invoke(app, ["inspect", "--store", store]).stdout
    for part in ("descriptors/background", "600 x 8 float32", "5 classes", "12 to 8 dimensions", "vectors.npy", "yes"):
        assert part in shown
    rows = np.load(tmp_path / "inputs" / "vectors.npy")
    np.save(tmp_path / "inputs" / "vectors.npy", rows + 1)
    found = json.loads(CliRunner().invoke(app, ["inspect", "--store", store, "--json"]).stdout)
    assert [line["stale"] for line in found["artifacts"]] == [["vectors.npy has changed since"]] * 3
    (tmp_path / "inputs" / "vectors.npy").unlink()
    found = json.loads(CliRunner().invoke(app, ["inspect", "--store", store, "--json"]).stdout)
    assert [(line["stale"], line["gone"]) for line in found["artifacts"]] == [([], ["vectors.npy"])] * 3


def test_inspect_counts_labels_and_measures_norms(store: str) -> None:
    found = json.loads(CliRunner().invoke(app, ["inspect", "descriptors/seeds", "--store", store, "--json"]).stdout)
    statistics = found["statistics"]
    assert statistics["norms"]["median"] == pytest.approx(1, abs=1e-6)
    assert (statistics["labels"]["labelled"], statistics["labels"]["classes"]) == (600, 5)
    assert statistics["labels"]["rows_per_class"]["max"] == 120


def test_inspect_shows_rows_by_the_ids_and_names_of_the_user(store: str) -> None:
    arguments = ["inspect", "descriptors/seeds", "--rows", "-2:", "--store", store, "--json"]
    rows = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert [(row["row"], row["id"], row["labels"]) for row in rows] == [
        (598, "row-598", ["class 3"]),
        (599, "row-599", ["class 4"]),
    ]
    vectors = Store.open(Path(store)).open_artifact("descriptors/seeds").array("vectors")
    np.testing.assert_allclose([row["values"] for row in rows], vectors[-2:], atol=1e-6)


def test_verify_of_a_damaged_store_names_the_chunk_and_the_command_that_helps(store: str) -> None:
    chunk = Path(store) / "descriptors" / "seeds" / "raw" / "c.1.0"
    content = bytearray(chunk.read_bytes())
    content[77] ^= 4
    chunk.write_bytes(content)
    outcome = CliRunner().invoke(app, ["verify", "--store", store])
    assert outcome.exit_code == 1
    assert "descriptors/seeds, raw, c.1.0" in outcome.stdout
    assert "mmdiff import" in outcome.stdout
    assert CliRunner().invoke(app, ["verify", "descriptors/background", "--store", store]).exit_code == 0


def test_ctrl_c_ends_an_import_politely_and_the_same_command_continues(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((1_200_000, 64)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    command = [str(PROGRAM), "import", "rows.npy", "--role", "background"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    chunks = tmp_path / "mmdiff-store" / "work" / "descriptors.background" / "object" / "vectors"
    while process.poll() is None and not any(chunks.glob("c.?.0")):
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate()
    assert process.returncode == 130
    assert told == "mmdiff: interrupted. What is finished is kept: the same command continues from there.\n"
    again = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(again.stdout)["chunks_found"] >= 1
    store = Store.open(tmp_path / "mmdiff-store")
    assert problems(store) == []
    expected = rows[-1] / np.linalg.norm(rows[-1])
    np.testing.assert_allclose(store.open_artifact("descriptors/background").array("vectors")[-1], expected, rtol=1e-5)
    assert not (tmp_path / "mmdiff-store" / "work").exists()


def test_the_store_can_be_named_by_the_environment(store: str, tmp_path: Path) -> None:
    outcome = subprocess.run(
        [PROGRAM, "inspect"],
        cwd=tmp_path,
        env={**os.environ, "MMDIFF_STORE": store},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "descriptors/seeds" in outcome.stdout


def test_output_cut_short_by_a_reader_is_no_error(store: str) -> None:
    shell = f"{PROGRAM} inspect descriptors/seeds --rows : --store {store} | head -1"
    outcome = subprocess.run(["bash", "-c", f"set -o pipefail; {shell}"], capture_output=True, text=True, check=False)
    assert "Traceback" not in outcome.stderr
    assert outcome.stdout.startswith("row")


def test_gc_says_what_it_would_remove_and_removes_it(tmp_path: Path, store: str) -> None:
    arguments = [str(tmp_path / "inputs" / "others.npy"), "--role", "background", "--dims", "8", "--store", store]
    assert CliRunner().invoke(app, ["import", *arguments]).exit_code == 0
    before = tree(Path(store))
    would = json.loads(CliRunner().invoke(app, ["gc", "--dry-run", "--store", store, "--json"]).stdout)
    assert tree(Path(store)) == before
    did = json.loads(CliRunner().invoke(app, ["gc", "--store", store, "--json"]).stdout)
    assert {**would, "removed": True} == did
    assert len(did["items"]) == 2
    assert problems(Store.open(Path(store))) == []
