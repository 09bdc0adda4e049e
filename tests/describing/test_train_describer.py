"""`mmdiff train-describer`: a small network learns base classes, and continues to the same weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
from PIL import Image
from typer.testing import CliRunner

import mmdiff
from mmdiff.cli import app
from mmdiff.errors import BadLabels, BadOption
from mmdiff.runtime.progress import Advance, Progress
from tests.support.images import save_pictures

SMALL: dict[str, Any] = {"size": 16, "width": 4, "epochs": 3, "batch_size": 8, "lr": 0.05, "threads": 1}


def striped(folder: Path, each: int = 20) -> Path:
    """Two classes that colours do not tell apart: stripes from left to right, and from top to bottom."""
    draw = np.random.default_rng(0)
    for name in ("across", "down"):
        (folder / name).mkdir(parents=True)
        for i in range(each):
            wave = 127 + 127 * np.sin(np.arange(20) * draw.uniform(0.8, 1.6) + draw.uniform(0, 6))
            pixels = np.repeat(wave.astype(np.uint8)[:, None], 20, 1)
            Image.fromarray(pixels if name == "across" else pixels.T.copy()).save(folder / name / f"{i}.png")
    return folder


def stopped_at(batch: int) -> Progress:
    @contextmanager
    def display(what: str, total: int, unit: str) -> Iterator[Advance]:
        del total, unit
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if what == "training" and count and done == batch:
                raise KeyboardInterrupt

        yield advance

    return display


def test_an_interrupted_training_continues_to_the_same_weights(tmp_path: Path) -> None:
    base = save_pictures(tmp_path / "base", "ab", 16)
    whole, out = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    mmdiff.train_describer(base, whole, **SMALL)
    for batch in (2, 6):
        with pytest.raises(KeyboardInterrupt):
            mmdiff.train_describer(base, out, **SMALL, progress=stopped_at(batch))
        assert not out.exists()
        assert (tmp_path / "parts.safetensors.checkpoint").exists()
    made = mmdiff.train_describer(base, out, **SMALL)
    assert (made["continued"], made["batches"]) == (6, 9)
    assert out.read_bytes() == whole.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "parts.safetensors", "whole.safetensors"]


def test_a_checkpoint_of_other_parameters_or_a_damaged_one_is_not_continued(tmp_path: Path) -> None:
    base, out = save_pictures(tmp_path / "base", "ab", 8), tmp_path / "d.safetensors"
    with pytest.raises(KeyboardInterrupt):
        mmdiff.train_describer(base, out, **SMALL, progress=stopped_at(2))
    assert mmdiff.train_describer(base, out, **SMALL | {"lr": 0.01})["continued"] == 0
    (tmp_path / "d.safetensors.checkpoint").write_bytes(b"x" * 100)
    assert mmdiff.train_describer(base, out, **SMALL)["continued"] == 0


def test_it_learns_what_colours_do_not_tell_and_describe_takes_its_weights(tmp_path: Path) -> None:
    base, out = striped(tmp_path / "base"), tmp_path / "describer.safetensors"
    options = ["--size", "16", "--width", "8", "--epochs", "8", "--batch-size", "8", "--lr", "0.05", "--threads", "1"]
    outcome = CliRunner().invoke(app, ["train-describer", str(base), "--out", str(out), *options, "--json"])
    assert outcome.exit_code == 0, outcome.stderr
    summary = json.loads(outcome.stdout)
    assert (summary["network"], summary["values"], summary["classes"], summary["held_out"]) == ("ResNet-10", 64, 2, 4)
    assert summary["accuracy"] == 1.0
    metadata = json.loads(safetensors.safe_open(out, "pt").metadata()["mmdiff"])
    assert metadata["classes"] == ["across", "down"]
    made = mmdiff.open(tmp_path / "store", create=True).describe(base, model=out)
    assert (made["shape"], made["model"]["kind"]) == ([40, 64], "ResNet-10")
    shown = CliRunner().invoke(app, ["train-describer", str(base), "--out", str(out), *options])
    assert "100.0% of 4 held-out images of these classes classified rightly (50.0% by chance)" in shown.stdout


@pytest.mark.parametrize(
    ("changed", "error", "told"),
    [
        ({"out": "d.pt"}, BadOption, "written as .safetensors"),
        ({"out": "none/d.safetensors"}, BadOption, "there is no folder"),
        ({"depth": 12}, BadOption, "expected 10 or 18"),
        ({"epochs": 0}, BadOption, "expected a whole number"),
        ({"lr": 1e8}, BadOption, "the training diverged"),
        ({"source": "one"}, BadLabels, "1 class, expected at least 2"),
        ({"source": "base/a"}, BadLabels, "no classes, expected at least 2"),
        ({"source": "single"}, BadLabels, "no class has two images"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(
    tmp_path: Path, changed: dict[str, Any], error: type[Exception], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_pictures(Path("base"), "ab", 8)
    save_pictures(Path("one"), "a", 3)
    save_pictures(Path("single"), "ab", 1)
    with pytest.raises(error, match=told):
        mmdiff.train_describer(**{"source": "base", "out": "d.safetensors", **SMALL, **changed})
    assert not Path("d.safetensors").exists()
