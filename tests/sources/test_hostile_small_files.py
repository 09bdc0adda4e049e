"""Small files of users: what is no regular file, too large, too deep or no text is refused with a sentence that names it."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from mmdiff.cli import app
from mmdiff.experiment.config import read_config
from mmdiff.formats.errors import BadLabels, InputError, UnreadableSource
from mmdiff.formats.sources.columns.in_memory import column_of
from mmdiff.formats.sources.columns.reading import read_class_names, read_column
from mmdiff.formats.sources.documents import MOST_LEVELS, read_json, read_toml
from mmdiff.formats.sources.graphs import read_csr
from mmdiff.importing.arrays import given_class_names
from mmdiff.importing.columns import read_columns
from tests.support.small_experiments import small_config, write_config


@pytest.mark.parametrize("name", ["config.toml", "split.json", "names.txt", "names.json", "names.csv", "y.npy", "y.parquet"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_regular_file_does_not_hang(tmp_path: Path, name: str, kind: str) -> None:
    file = tmp_path / name
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    read: Any = {"config": read_config, "split": read_json, "names": read_class_names, "y": lambda path: read_column(str(path))}
    with pytest.raises(UnreadableSource, match=rf"{name}: not a regular file"):
        read[file.stem](file)


def test_a_link_to_a_regular_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "names").write_text("cat\ndog\n")
    (tmp_path / "names.txt").symlink_to(tmp_path / "names")
    assert read_class_names(tmp_path / "names.txt") == {0: "cat", 1: "dog"}


TOMLS = {
    "arrays within arrays": "a = " + "[" * 10_000,
    "tables within tables": "a = " + "{a = " * 10_000,
    "dotted key": ".".join("a" * 50_000) + " = 1",
    "dotted key in quotes": ".".join(['"a,="'] * 40_000) + " = 1",
    "dotted table": "[" + ".".join("a" * 50_000) + "]",
    "dotted key after strings and comments": 'b = """\n#"""\n# """\n' + ".".join("a" * 50_000) + ' = 1 # """',
    "dotted key after escaped quotes": 'b = """\\""" x"""\n' + ".".join("a" * 3000) + ' = 1\nc = """ """\n',
    "dotted key after four quotes": 'b = {c = """x"""", ' + ".".join("a" * 3000) + ' = "" }',
    "dotted key after five single quotes": "b = {c = '''x''''', " + ".".join("a" * 3000) + " = '' }",
    "dotted keys within tables": "{".join(".".join("a" * 20) + " = " for _ in range(20)) + "1" + "}" * 19,
    "dotted key in a dotted table": f"[{'.'.join('a' * 20)}]\n{'.'.join('b' * 20)} = 1",
}


@pytest.mark.parametrize("kind", TOMLS)
def test_deep_configs_are_refused(tmp_path: Path, kind: str) -> None:
    (tmp_path / "c.toml").write_text(TOMLS[kind])
    with pytest.raises(UnreadableSource, match=r"c\.toml: not readable as TOML: nested [0-9,]+ levels deep, expected"):
        read_toml(tmp_path / "c.toml")


def test_hidden_depth_of_a_config_is_refused(tmp_path: Path) -> None:
    hidden = f"name.{'.'.join('b' * 3000)} = 1"
    (tmp_path / "c.toml").write_text(f'data.seeds = """\\""" x"""\n{hidden}\ndata.test = """ """\n')
    with pytest.raises(UnreadableSource, match=r"c\.toml: not readable as TOML: nested 3,001 levels deep"):
        read_config(tmp_path / "c.toml")


def test_configs_are_read_to_the_last_level_that_is_allowed(tmp_path: Path) -> None:
    for levels, fits in ((MOST_LEVELS, True), (MOST_LEVELS + 1, False)):
        (tmp_path / "c.toml").write_text(f"a = {'[' * levels}{']' * levels}")
        with nullcontext() if fits else pytest.raises(UnreadableSource, match=r"nested 33 levels deep, expected at most 32"):
            assert len(read_toml(tmp_path / "c.toml")) == 1


ENDLESS = {
    "string of escaped quotes": 'x = "' + '\\"' * 130_000,
    "string of many lines and escaped quotes": 'x = """' + '\\"' * 130_000,
    "string of many lines that ends in a backslash": 'x = """' + '\\"""' * 65_000 + "\\",
    "string of pairs of quotes": 'x = """' + '"" ' * 87_000,
    "strings of a quote each": '"\n' * 130_000,
    "string of backslashes": 'x = "' + "\\" * 260_001,
    "literal string": "x = '" + '"' * 260_000,
    "literal string of many lines": "x = '''" + "'' " * 87_000,
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_strings_without_an_end_are_refused_in_linear_time(tmp_path: Path, kind: str) -> None:
    (tmp_path / "c.toml").write_text(ENDLESS[kind])
    with pytest.raises(UnreadableSource, match=r"c\.toml: not readable as TOML"):
        read_toml(tmp_path / "c.toml")


def test_dots_and_brackets_in_strings_and_comments_are_no_levels(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(f'# {"." * 99} {"[" * 99}\na = "{"./" * 99}{"[" * 99}" # {"." * 99}\nb.c = 0.5\n')
    assert read_toml(tmp_path / "c.toml") == {"a": "./" * 99 + "[" * 99, "b": {"c": 0.5}}


@pytest.mark.parametrize("number", ["0x" + "f" * 5000, "9" * 5000])
def test_endless_numbers_of_a_config_are_refused(tmp_path: Path, number: str) -> None:
    (tmp_path / "c.toml").write_text(f"draws = {number}")
    with pytest.raises(UnreadableSource, match=r"c\.toml: .*(20,000 bits|4300 digits)"):
        read_config(tmp_path / "c.toml")


@pytest.mark.parametrize("content", ["[" * 100_000, '{"base_1": [' + "9" * 5000 + "]}", '{"base_1": [1e400]}', '{"base_1": 1}'])
def test_hostile_splits_are_refused(tmp_path: Path, content: str) -> None:
    path = write_config(tmp_path, small_config())
    (tmp_path / "split.json").write_text(content)
    with pytest.raises(InputError, match=r"split\.json|base"):
        read_config(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("names.json", json.dumps({"cat": 1 << 63})),
        ("names.json", json.dumps({str(1 << 63): "cat"})),
        ("names.json", '{"cat": ' + "9" * 5000 + "}"),
        ("names.json", json.dumps({"9" * 5000: "cat"})),
        ("names.csv", f"0,cat\n{1 << 63},dog\n"),
        ("names.csv", f"0,cat\n{'9' * 5000},dog\n"),
        ("names.json", '{"0": "\\ud800"}'),
        ("names.json", '["\\udfff cat"]'),
    ],
)
def test_class_names_beyond_all_numbers_and_characters_are_refused(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=rf"{name}") as refused:
        read_class_names(tmp_path / name)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("names", [{1 << 63: "cat"}, {0: "\ud800"}, {10**5000: "cat"}, {-1: "cat"}])
def test_class_names_in_memory_beyond_all_numbers_and_characters_are_refused(names: dict[int, str]) -> None:
    with pytest.raises(BadLabels, match=r"class"):
        read_columns(None, None, None, given_class_names(names), "seeds")  # type: ignore[arg-type]


@pytest.mark.parametrize("labels", [[10**5000, 1], ["\ud800", "a"], np.array(["\ud800"]), [[1], [10**5000]]])
def test_labels_in_memory_beyond_all_numbers_and_characters_are_refused(labels: Any) -> None:
    with pytest.raises(InputError, match=r"labels"):
        column_of(labels, "labels")


@pytest.mark.parametrize("code", [0xD800, 0xDFFF, 0x110000, 0xFFFFFFFF])
def test_codes_that_are_no_characters_are_refused(tmp_path: Path, code: int) -> None:
    texts = np.array([ord("a"), 0, code, 0], np.uint32).view("<U2")
    np.save(tmp_path / "y.npy", texts)
    with pytest.raises(UnreadableSource, match=r"y\.npy, rows 0 to 2: text that is not valid Unicode"):
        read_column(str(tmp_path / "y.npy"))


HOSTILE = ("x.npy", "x.h5", "x.parquet", "x.zarr")


@pytest.mark.parametrize("name", HOSTILE)
def test_damaged_files_are_sentences_on_the_command_line(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    if name == "x.zarr":
        file.mkdir()
        (file / ".zarray").write_text('{"zarr_format": 2, "shape": [4, 4], "chunks": [0, 4]}')
    else:
        file.write_bytes(b"\x93NUMPY\x01\x00\xff\xff{'descr'" if name == "x.npy" else b"PAR1 no file of any kind PAR1")
    outcome = CliRunner().invoke(app, ["import", str(file), "--role", "background", "--store", str(tmp_path / "store")])
    assert outcome.exit_code == 2, outcome.output
    assert outcome.stderr.startswith(f"mmdiff: {file}")
    assert outcome.stderr.count("\n") == 1


def test_labels_of_a_pipe_are_a_sentence_on_the_command_line(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.eye(4, dtype=np.float32))
    os.mkfifo(tmp_path / "y.txt")
    words = ["import", str(tmp_path / "x.npy"), "--role", "background", "--labels", str(tmp_path / "y.txt")]
    outcome = CliRunner().invoke(app, [*words, "--store", str(tmp_path / "store")])
    assert outcome.exit_code == 2, outcome.output
    assert outcome.stderr == f"mmdiff: {tmp_path / 'y.txt'}: not a regular file. Give the path of a file on disk.\n"


def test_a_shape_of_truth_values_is_refused(tmp_path: Path) -> None:
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (True, True)}\n"
    (tmp_path / "y.npy").write_bytes(b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(8))
    with pytest.raises(UnreadableSource, match=r"y\.npy: damaged \.npy header, shape \(True, True\)"):
        read_column(str(tmp_path / "y.npy"))


def test_parquet_texts_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"label": ["cat", "d\N{LATIN SMALL LETTER O WITH DIAERESIS}g"]}), tmp_path / "y.parquet")
    raw = (tmp_path / "y.parquet").read_bytes()
    (tmp_path / "y.parquet").write_bytes(raw.replace("\N{LATIN SMALL LETTER O WITH DIAERESIS}".encode(), b"\xff\xff"))
    with pytest.raises(UnreadableSource, match=r"y\.parquet: not readable as Parquet \(.*UTF8"):
        read_column(str(tmp_path / "y.parquet"))


def test_a_matrix_of_single_values_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", format=b"csr", shape=[1, 1], indptr=[0, 1], indices=0, data=1.0)
    with pytest.raises(UnreadableSource, match=r"w\.npz: 1 columns for 1 values"):
        read_csr(tmp_path / "w.npz")
