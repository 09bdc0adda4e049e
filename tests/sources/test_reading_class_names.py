"""Class names: one name for each number, one number for each name, from three formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmdiff.formats.errors import BadLabels, InputError
from mmdiff.formats.sources.columns.reading import read_class_names


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("x.txt", "cat\ndog\n", {0: "cat", 1: "dog"}),
        ("x.txt", "cat\r\ndog", {0: "cat", 1: "dog"}),
        ("x.json", '["cat", "dog"]', {0: "cat", 1: "dog"}),
        ("x.json", '{"0": "cat", "7": "dog"}', {0: "cat", 7: "dog"}),
        ("x.json", '{"cat": 0, "dog": 7}', {0: "cat", 7: "dog"}),
        ("x.json", '{"1": 0, "0": 1}', {0: "1", 1: "0"}),
        ("x.csv", "0,cat\n7,dog\n", {0: "cat", 7: "dog"}),
        ("x.csv", 'number,name\n0,"cat, small"\n', {0: "cat, small"}),
    ],
)
def test_names_are_read(tmp_path: Path, name: str, content: str, expected: dict[int, str]) -> None:
    (tmp_path / name).write_bytes(content.encode())
    assert read_class_names(tmp_path / name) == read_class_names(str(tmp_path / name)) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", "cat\ndog\ncat\n", r"'cat' in line 1 and again in line 3"),
        ("x.csv", "0,cat\n1,dog\n0,cow\n", r"class 0 in line 1 and again in line 3"),
        ("x.csv", "n,name\n0,cat\n1,cat\n", r"'cat' in line 2 and again in line 3"),
        ("x.json", '{"0": "cat", "0": "dog"}', r"class 0 in entry 1 and again in entry 2"),
        ("x.json", '{"cat": 1, "dog": 1}', r"class 1 in entry 1 and again in entry 2"),
        ("x.json", '["cat", "cat"]', r"'cat' in entry 1 and again in entry 2"),
        ("x.txt", "cat\n\ndog\n", r", line 2: class 1 has an empty name"),
    ],
)
def test_contradictions_name_both_places(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(BadLabels, match=name + ".*" + message):
        read_class_names(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.json", "{", "not readable as JSON"),
        ("x.json", "[" * 100_000, "not readable as JSON"),
        ("x.json", "7", "found a single int"),
        ("x.json", '{"0": ["n01440764", "tench"]}', r"entry 1: found '0': \['n01440764'"),
        ("x.json", '{"cat": true}', r"entry 1: found 'cat': True"),
        ("x.json", '{"cat": -3}', r"entry 1: found 'cat': -3"),
        ("x.json", "[1, 2]", r"entry 1: found 0: 1"),
        ("x.json", "[]", "holds no class names"),
        ("x.csv", "0,cat\nx,dog\n", r", line 2: found 'x,dog', expected number,name"),
        ("x.csv", "0,cat,more\n", r", line 1: found '0,cat,more'"),
        ("x.txt", "", "holds no class names"),
        ("x.yaml", "0: cat", r"read from \.txt, \.json and \.csv"),
    ],
)
def test_what_is_no_list_of_names_is_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=name + ".*" + message):
        read_class_names(tmp_path / name)
