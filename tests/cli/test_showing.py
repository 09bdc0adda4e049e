"""Output of commands: data is never markup, tables fit the terminal, every encoding works, long work shows progress."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import mmdiff
from mmdiff.cli import app, show
from mmdiff.runtime import bars

NASTY = ["crane [bird]", "x [/b]", "[red]fox", "tab\there", "esc\x1b[31m", "ünïcode €", "line\nbreak", "\u202eright-to-left"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose class names and ids look like markup and control sequences."""
    folder = tmp_path_factory.mktemp("nasty")
    rng = np.random.default_rng(0)
    y = np.arange(160) % 8
    X = rng.normal(size=(8, 16))[y] + rng.normal(scale=0.3, size=(160, 16))
    store = mmdiff.open(folder / "store", create=True)
    store.add(X[:80])
    store.add(X[80:120], role="seeds", labels=[NASTY[c] for c in y[80:120]])
    store.add(X[120:], role="test", labels=[NASTY[c] for c in y[120:]], ids=[f"{NASTY[c]} {i}" for i, c in enumerate(y[120:])])
    store.build_graph(k=8)
    store.diffuse(iterations=2)
    return folder / "store"


def run(place: Path, *words: str, **environment: str) -> str:
    outcome = CliRunner(env=environment).invoke(app, [*words, "--store", str(place)], catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


COMMANDS = {
    "evaluate": ("evaluate", "scores/diffusion", "--per-class"),
    "explain": ("explain", "--test", f"{NASTY[1]} 1"),
    "rows": ("inspect", "descriptors/seeds", "--rows", "0:8"),
    "details": ("inspect", "descriptors/seeds"),
    "overview": ("inspect",),
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("columns", ["200", "60"])
def test_class_names_and_ids_are_data(place: Path, words: tuple[str, ...], columns: str) -> None:
    text = run(place, *words, COLUMNS=columns)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", text), "a control character reaches the terminal"
    if words[0] == "evaluate" or "--rows" in words:
        squeezed = re.sub(r"\s+", "", text)
        for name in NASTY[:3]:
            assert re.sub(r"\s+", "", name) in squeezed


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("columns", [60, 80, 132])
def test_output_fits_the_terminal(place: Path, words: tuple[str, ...], columns: int) -> None:
    text = run(place, *words, COLUMNS=str(columns))
    tables = [line for line in text.splitlines() if not line.startswith(("margin", "  margin", str(place)[:20], "test point"))]
    wide = [line for line in tables if len(line.rstrip()) > columns and not line.startswith(("descriptors/", "  "))]
    assert not wide


def test_a_wide_table_becomes_blocks_that_hold_the_same(place: Path) -> None:
    wide, narrow = (run(place, "inspect", COLUMNS=columns) for columns in ("220", "60"))
    assert "content: " in narrow
    assert "content: " not in wide
    for name in mmdiff.open(place).names():
        assert name in wide
        assert name in narrow


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("words", [("inspect",), ("evaluate",), ("inspect", "--json"), ("evaluate", "--json"), ("--help",)])
def test_any_encoding_is_readable(place: Path, words: tuple[str, ...], encoding: str) -> None:
    script = Path(sys.executable).parent / "mmdiff"
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "MMDIFF_STORE": str(place)}
    outcome = subprocess.run([script, *words], env=environment, capture_output=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    text = outcome.stdout.decode(encoding)
    if "--json" in words:
        assert json.loads(text)


def test_no_colour_where_it_is_not_wanted(place: Path) -> None:
    assert "\x1b[" in in_terminal(place, "inspect")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", in_terminal(place, "inspect", NO_COLOR="1"))


def in_terminal(place: Path, *words: str, **environment: str) -> str:
    """The output of a command on a terminal of its own."""
    leader, follower = pty.openpty()
    script = Path(sys.executable).parent / "mmdiff"
    plain = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
    settings = {**plain, "TERM": "xterm", "COLUMNS": "100", **environment}
    with subprocess.Popen([script, *words, "--store", place], env=settings, stdout=follower, stderr=follower) as process:
        os.close(follower)
        text = b"".join(_read(leader))
        assert process.wait() == 0
    os.close(leader)
    return text.decode()


def _read(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            data = os.read(descriptor, 1 << 16)
        except OSError:
            return
        if not data:
            return
        yield data


def test_without_a_terminal_long_work_prints_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(range(0, 10_000, 5))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    with bars.show_progress("searching", 1000, "rows") as advance:
        for _ in range(100):
            advance(10)
    lines = capsys.readouterr().err.splitlines()
    assert 4 <= len(lines) <= 12, "ever less often"
    assert all(re.fullmatch(r"mmdiff: searching: \d+ %, [\d.]+ rows/s(, .* left)?", line) for line in lines)


def test_short_work_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with bars.show_progress("searching", 10, "rows") as advance:
        advance(10)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("rows", "columns"), [([], ("a", "b", "c")), ([("", "", "")], ("a", "b", "c"))])
def test_tables_of_nothing_are_printed(rows: list[Any], columns: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    show.table(columns, rows)
    assert capsys.readouterr().out.strip() in ("", "a  b  c")
