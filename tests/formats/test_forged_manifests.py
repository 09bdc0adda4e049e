"""Forged manifests with right digests: remote and local stores refuse them with a typed error, and publish nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import mmdiff
from mmdiff.cli import app
from mmdiff.formats.errors import BadResult, Corrupt
from mmdiff.formats.remote.remote import Remote
from mmdiff.formats.store.growing import Growth
from mmdiff.formats.store.manifest import Manifest, Record, encode, object_id, parse_run, run_json
from mmdiff.formats.store.publish import Publication
from mmdiff.formats.store.store import Store
from tests.support.remotes import files_of
from tests.support.stores import interrupt_growth, problems, publish, recipe, tree

BACKGROUND = "descriptors/background"
ID = f"pca-{'0' * 24}"

Change = Callable[[dict[str, Any]], Any]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def replaced(**values: Any) -> Change:
    return lambda document: document.update(values)


def with_input(entry: Any) -> Change:
    return lambda document: document["inputs"].update(a=entry)


FORGERIES: dict[str, Change] = {
    "input that is a number": with_input(5),
    "input without an object": with_input({"artifact": "models/pca"}),
    "input that is a path": with_input({"artifact": "../../etc", "object": ID}),
    "input of a path for an object": with_input({"artifact": "models/pca", "object": "/etc"}),
    "input with a surplus entry": with_input({"artifact": "models/pca", "object": ID, "more": 1}),
    "source without a digest": with_input({"source": "x.npy", "bytes": 5, "files": 1}),
    "source of negative size": with_input({"source": "x.npy", "bytes": -5, "files": 1, "digest": "0" * 24}),
    "source with a surplus entry": with_input({"source": "x", "bytes": 5, "files": 1, "digest": "0" * 24, "more": 1}),
    "inputs as a list": replaced(inputs=[]),
    "absolute kind": replaced(kind="/tmp/kind"),
    "kind that leads out of the store": replaced(kind="../../kind"),
    "empty kind": replaced(kind=""),
    "schema 0": replaced(schema=0),
    "schema that is true": replaced(schema=True),
    "facts as a list": replaced(facts=[]),
    "checksums with a prefix": lambda document: document["arrays"]["vectors"].update(crc32c=["0x1", "0x2", "0x3"]),
    "checksums as a number": lambda document: document["arrays"]["vectors"].update(crc32c=5),
    "no checksums": lambda document: document["arrays"]["vectors"].pop("crc32c"),
}
FALSE_CONTENT: dict[str, Change] = {
    "no facts": replaced(facts={}),
    "rows that are a text": lambda document: document["facts"].update(rows="many"),
    "rows that are true": lambda document: document["facts"].update(rows=True),
    "dropped rows as a number": lambda document: document["facts"].update(dropped=5),
}


def forged(text: bytes, change: Change) -> bytes:
    document = json.loads(text)
    change(document["attributes"]["mmdiff"])
    return encode(document)


def copy_with(store: Store, folder: Path, text: bytes) -> str:
    """A copy of the store without symlinks, in which the manifest of the background is replaced; its URL."""
    for file, content in files_of(store.path, "none"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(text if file == f"{BACKGROUND}/zarr.json" else content)
    return f"file://{folder}"


@pytest.mark.parametrize("what", [*FORGERIES, *FALSE_CONTENT])
def test_forged_manifest_of_a_remote_store_is_refused_by_fetch_and_inspect(store: Store, quick_folder: Path, what: str) -> None:
    text = (store.open_artifact(BACKGROUND).folder / "zarr.json").read_bytes()
    url = copy_with(store, quick_folder / "there", forged(text, (FORGERIES | FALSE_CONTENT)[what]))
    for command in (
        ["fetch", url, BACKGROUND, "--store", quick_folder / "here"],
        ["fetch", url, BACKGROUND, "--with-inputs", "--store", quick_folder / "here"],
        ["inspect", "--store", url],
        ["inspect", BACKGROUND, "--store", url],
    ):
        outcome = run(*command)
        assert outcome.exit_code == 1, (command, outcome.output, outcome.exception)
        assert outcome.stderr.startswith("mmdiff: ")
        assert BACKGROUND in outcome.stderr
    assert not (quick_folder / "here" / BACKGROUND).is_symlink()
    assert not list((quick_folder / "here").glob("objects/descriptors-*"))


@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"1e999"])
def test_numbers_that_are_not_json_are_refused(store: Store, quick_folder: Path, number: bytes) -> None:
    text = (store.open_artifact(BACKGROUND).folder / "zarr.json").read_bytes().replace(b'"rows": 600', b'"rows": ' + number)
    assert number in text
    url = copy_with(store, quick_folder / "there", text)
    assert run("fetch", url, BACKGROUND, "--store", quick_folder / "here").exit_code == 1
    with pytest.raises(Corrupt, match="not the metadata of a zarr group"):
        Manifest.parse(text, BACKGROUND)


def test_input_of_a_name_that_no_store_has_is_not_fetched(store: Store, quick_folder: Path) -> None:
    text = (store.open_artifact(BACKGROUND).folder / "zarr.json").read_bytes()
    url = copy_with(store, quick_folder / "there", forged(text, with_input({"artifact": "others/x", "object": ID})))
    outcome = run("fetch", url, BACKGROUND, "--with-inputs", "--store", quick_folder / "here")
    assert outcome.exit_code == 0, outcome.output
    assert Store.open(quick_folder / "here").names() == [BACKGROUND, "models/pca"]


@pytest.mark.parametrize("what", [*FORGERIES, *FALSE_CONTENT])
def test_forged_manifest_of_a_local_store_is_found_by_verify_and_inspect(store: Store, what: str) -> None:
    folder = store.open_artifact(BACKGROUND).folder
    text = forged((folder / "zarr.json").read_bytes(), (FORGERIES | FALSE_CONTENT)[what])
    (folder / "zarr.json").write_bytes(text)
    name = object_id("descriptors", text)
    folder.rename(store.objects / name)
    (store.path / BACKGROUND).unlink()
    (store.path / BACKGROUND).symlink_to(f"../objects/{name}")
    assert BACKGROUND in {problem.artifact for problem in problems(store)}
    assert all(problem.array is None for problem in problems(store) if problem.artifact == BACKGROUND)
    before = tree(store.path)
    for command in ("inspect", f"inspect {BACKGROUND}", "verify"):
        outcome = run(*command.split(), "--store", store.path)
        assert outcome.exit_code == 1, (command, outcome.output, outcome.exception)
    assert tree(store.path) == before


RUNS: dict[str, dict[str, Any]] = {
    "command that is a number": {"command": 5},
    "time that is none": {"started": "yesterday"},
    "seconds as a text": {"seconds": "5"},
    "sources as a list": {"witness": []},
    "files of a source as a number": {"witness": {"source": 5}},
    "file as a text": {"witness": {"source": ["x.npy"]}},
    "file without a time": {"witness": {"source": [["x.npy", 5]]}},
}


@pytest.mark.parametrize("what", RUNS)
def test_record_of_a_run_with_other_types_is_damage(what: str) -> None:
    with pytest.raises(Corrupt, match="the record of the run is damaged"):
        parse_run(run_json(RUNS[what]), "x")


def test_entry_that_is_not_there_is_damage_and_no_key_error() -> None:
    run = parse_run(run_json({"command": "a test", "witness": {"source": [["x.npy", 5, 6]]}}), "graph/W (run/zarr.json)")
    assert run["witness"]["source"] == [["x.npy", 5, 6]]
    for record, key in ((run, "seconds"), (run["witness"], "labels")):
        with pytest.raises(Corrupt, match=rf"graph/W \(run/zarr\.json\): there is no '{key}' in it"):
            _ = record[key]
    assert run.get("seconds") is None
    assert parse_run(run_json({}), "x") == {}
    assert Record.of({"a": 1}, "x") == {"a": 1}


def test_report_whose_lines_are_no_lines_is_not_described(quick_folder: Path) -> None:
    arrays = {
        "planes": np.zeros((1, 6), np.int64),
        "offsets": np.array([0, 1]),
        "keys": np.zeros((1, 12), np.uint8),
    }
    facts = {"tests": {}, "lines": [1]}
    run = {"command": "a test", "started": "2026-01-01T00:00:00+00:00", "seconds": 1.0, "witness": {}}
    publish(quick_folder / "store", "reports/x", arrays, recipe("report", draws=1), facts, run)
    with pytest.raises(Corrupt, match="reports/x"):
        mmdiff.open(quick_folder / "store").inspect("reports/x")


@pytest.mark.parametrize("change", [replaced(kind="K" * 10**6), lambda document: document["arrays"].update({"X" * 10**6: {}})])
def test_names_that_fill_the_screen_are_shortened(store: Store, change: Change) -> None:
    text = (store.open_artifact(BACKGROUND).folder / "zarr.json").read_bytes()
    with pytest.raises(Corrupt, match=r"is not a (kind of artifact|name for an array)") as refused:
        Manifest.parse(forged(text, change), BACKGROUND)
    assert len(str(refused.value)) < 300


def test_json_that_is_read_but_too_deep_to_be_written_is_damage(
    store: Store, quick_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.12 reads JSON that is deeper than the JSON that it writes."""
    path, name = quick_folder / "drafts", "models/x"
    interrupt_growth(path, name)
    text = (store.open_artifact(BACKGROUND).folder / "zarr.json").read_bytes()
    remote = Remote.open(copy_with(store, quick_folder / "there", text))
    run = run_json({"command": "a test"})
    with Publication(path, [name], "a test") as publication:
        draft = publication.draft(name, recipe())
        assert draft.noted["note"] == {"done": 10}

        def too_deep(*_: Any, **__: Any) -> str:
            raise RecursionError

        monkeypatch.setattr(json, "dumps", too_deep)
        with pytest.raises(Corrupt, match="not in the form in which mmdiff writes manifests"):
            remote.artifact(BACKGROUND)
        with pytest.raises(Corrupt, match="the record of the run is damaged"):
            parse_run(run, "x")
        with Growth(draft, {"v": "int32"}) as growth:
            assert growth.note == {}
        monkeypatch.undo()


def test_figures_that_are_not_finite_are_not_recorded() -> None:
    with pytest.raises(
        BadResult, match=r"^the record of the run: values that are not finite\. An input has some; find it with"
    ):
        run_json({"seconds": math.nan})
