"""Formats for other libraries: what cannot be written, interrupted exports, and the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mmdiff.cli import app
from mmdiff.errors import BadOption
from mmdiff.export import reading, stage
from mmdiff.formats.store.store import Store
from mmdiff.kinds import KINDS
from mmdiff.runtime.progress import Advance

export = partial(stage.export, kinds=KINDS)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCK_BYTES", 5000)


@pytest.mark.parametrize(
    ("name", "file", "options", "message"),
    [
        ("knn/BB", "x.txt", {}, r"knn/BB can be exported to \.npy, \.npz, \.parquet, \.csv, \.safetensors"),
        ("knn/BB", "x.csv", {"format_": "csr"}, r"csr is written to \.npz\. Choose a file with such an ending"),
        ("knn/BB", "x.npz", {"format_": "scipy"}, r"format_='scipy': knn/BB cannot .* Choose from csr \(\.npz\), edges"),
        ("scores/diffusion", "x.npz", {"format_": "csr"}, r"cannot be written in this format\. Leave it out"),
        (
            "graph/W",
            "x.npz",
            {"self_loops": False},
            r"self_loops=False: \.npz has no use for it\. It goes with the formats edges, edge-index",
        ),
        ("graph/W", "x.npz", {"self_loops": 3}, "expected true or false"),
        ("descriptors/test", "x.npy", {"projection": "xy.npy"}, r"No format of descriptors/test does\. Leave it out"),
        ("knn/BB", "x.npz", {"format_": "csr", "array": "neighbors"}, "csr is no single array"),
        ("knn/BB", "x.csv", {"order": "internal"}, "edges is written in your order of rows only"),
    ],
)
def test_what_cannot_be_written_is_told_with_what_can(
    store: Store, tmp_path: Path, name: str, file: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadOption, match=message):
        export(store, name, tmp_path / file, **options)
    assert not list(tmp_path.iterdir())


FILES = {
    "csr": ("knn/BB", "npz"),
    "edges": ("graph/W", "csv"),
    "edge-index": ("graph/W", "safetensors"),
    "sisap": ("knn/BB", "h5"),
    "embedding-atlas": ("knn/W0", "parquet"),
    "faiss": ("models/cells", "faiss"),
}


@pytest.mark.parametrize("format_", FILES)
def test_an_interrupted_export_leaves_the_file_as_it_was(store: Store, tmp_path: Path, format_: str) -> None:
    name, ending = FILES[format_]
    file = tmp_path / f"out.{ending}"
    file.write_text("as before")

    @contextmanager
    def interrupted(*_: Any) -> Iterator[Advance]:
        calls = iter(range(3))

        def advance(_: int) -> None:
            if next(calls, None) is None:
                raise KeyboardInterrupt

        yield advance

    with pytest.raises(KeyboardInterrupt):
        export(store, name, file, progress=interrupted, format_=format_)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    assert file.read_text() == "as before"


@pytest.mark.parametrize("format_", FILES)
def test_the_command_writes_the_same_bytes_and_reports_all_rows(store: Store, tmp_path: Path, format_: str) -> None:
    name, ending = FILES[format_]
    done = []

    @contextmanager
    def counting(_what: str, total: int, _unit: str) -> Iterator[Advance]:
        count: list[int] = []
        yield count.append
        done.append((sum(count), total))

    export(store, name, tmp_path / f"python.{ending}", progress=counting, format_=format_)
    assert done[0][0] == done[0][1]
    command = ["export", name, str(tmp_path / f"cli.{ending}"), "--format", format_, "--store", str(store.path)]
    result = CliRunner().invoke(app, command)
    assert (result.exit_code, result.stderr.count("only. Export knn/W0")) == (0, name == "knn/BB")
    assert f" of {name} as {format_}, " in result.stdout
    assert (tmp_path / f"cli.{ending}").read_bytes() == (tmp_path / f"python.{ending}").read_bytes()
    document = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert (document["format"], document["artifact"]) == (format_, name)


def test_the_command_spells_its_options(store: Store, tmp_path: Path) -> None:
    def refused(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["export", *arguments, "--store", str(store.path)])
        assert (result.exit_code, result.stdout) == (2, "")
        return result.stderr

    file = str(tmp_path / "x.npz")
    assert "--no-self-loops: .npz has no use for it" in refused("graph/W", file, "--no-self-loops")
    assert "--format faiss: knn/BB cannot be written in this format" in refused("knn/BB", file, "--format", "faiss")
    assert "Did you mean csr" in refused("knn/BB", file, "--format", "csrr")
