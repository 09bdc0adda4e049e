"""Mistakes in a config are refused with one sentence: the table and the key, what was found and what is valid; exit code 2."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mmdiff.cli import app
from mmdiff.experiment.config import read_config
from mmdiff.experiment.methods import OPTIONS
from mmdiff.formats.errors import InputError
from tests.support.paths import DOCS, REAL
from tests.support.small_experiments import DIFFUSION, FUSION, LOGREG, run, small_config, write_config

Change = Callable[[dict[str, Any]], object]

READY_MADE = sorted((DOCS / "experiments").glob("*.toml"))
DATA = REAL


def setting(*path: str, to: Any) -> Change:
    """Sets a value of a config."""

    def change(config: dict[str, Any]) -> None:
        *parents, last = path
        for key in parents:
            config = config[key]
        config[last] = to

    return change


def methods(*given: dict[str, Any]) -> Change:
    return setting("methods", to=list(given))


def without(*path: str) -> Change:
    def change(config: dict[str, Any]) -> None:
        *parents, last = path
        for key in parents:
            config = config[key]
        del config[last]

    return change


MISTAKES: dict[str, tuple[Change, tuple[str, ...]]] = {
    "unknown key": (
        setting("drawz", to=5),
        ("config.toml: unknown key 'drawz'. Did you mean 'draws'?", "Valid here: name, n,"),
    ),
    "unknown key of the data": (
        setting("data", "trian", to="x.npy"),
        ("config.toml, [data]: unknown key 'trian'. Did you mean 'train'?",),
    ),
    "unknown key of a group": (
        setting("groups", "test", "novell", to=[1]),
        ("config.toml, [groups.test]: unknown key 'novell'. Did you mean 'novel'?",),
    ),
    "unknown option": (
        methods(DIFFUSION | {"iteratoins": 3}),
        ("[[methods]] \"diffusion\": unknown key 'iteratoins'. Did you mean 'iterations'?", "reset_seeds"),
    ),
    "unknown option to tune": (
        methods(LOGREG | {"tune": {"weight_decy": [1.0]}}),
        ("[methods.tune] of \"logreg\": unknown key 'weight_decy'. Did you mean 'weight_decay'?",),
    ),
    "unknown operator": (
        methods(DIFFUSION | {"eta": ["row", "sinkhron"]}),
        ("eta = 'sinkhron'", "Did you mean 'sinkhorn'?"),
    ),
    "unknown method": (methods({"name": "a", "kind": "difusion"}), ("kind = 'difusion'", "Did you mean 'diffusion'?")),
    "unknown background": (setting("backgrounds", to=["indomain"]), ("backgrounds = 'indomain'", "Did you mean 'in-domain'?")),
    "background of no size": (setting("backgrounds", to=["out-of-domain:0"]), ("'out-of-domain:0'", "out-of-domain:SIZE")),
    "background that is too large": (setting("backgrounds", to=["out-of-domain:900"]), ("only 120 images are out of domain",)),
    "out-of-domain without classes": (without("groups", "out_of_domain"), ("Add out_of_domain to [groups]",)),
    "wrong type": (setting("n", to="two"), ("config.toml: n = 'two': expected a number of seeds per novel class",)),
    "not a whole number": (setting("draws", to=2.5), ("config.toml: draws = 2.5: expected a whole number from 1 to 10,000",)),
    "true is no number": (methods(DIFFUSION | {"k": True}), ("k = True: expected a whole number of at least 1",)),
    "number that is too small": (methods(DIFFUSION | {"k": [5, 0]}), ("k = 0: expected a whole number of at least 1",)),
    "number beyond all floats": (
        methods(DIFFUSION | {"gamma": 10**400}),
        ("gamma = 1000", "expected a number from 0.001 to 1000"),
    ),
    "infinite number": (methods(LOGREG | {"lr": float("inf")}), ("lr = inf: expected a number above 0",)),
    "number to tune that is none": (
        methods(LOGREG | {"tune": {"weight_decay": [0.1, float("nan")]}}),
        ('[methods.tune] of "logreg": weight_decay = nan: expected a number of at least 0',),
    ),
    "draws that are no number": (setting("draws", to=float("nan")), ("draws = nan: expected a whole number",)),
    "class beyond all numbers": (
        setting("groups", "test", "base", to=[10**30]),
        ("[groups.test]: base: expected a list of class",),
    ),
    "not a number": (methods(DIFFUSION | {"gamma": float("nan")}), ("gamma = nan: expected a number from 0.001 to 1000",)),
    "empty list": (methods(DIFFUSION | {"k": []}), ("k = []: the list is empty",)),
    "the same twice": (setting("n", to=[1, 2, 1]), ("n: 1 is listed twice",)),
    "no n": (without("n"), ("the key 'n' is missing",)),
    "no data": (without("data"), ("[data]: the key 'train' is missing",)),
    "no methods": (without("methods"), ("at least one table [[methods]]",)),
    "no validation group": (without("groups", "validation"), ("[groups.validation] is missing", "chosen there")),
    "methods that are no tables": (setting("methods", to=[3]), ("at least one table [[methods]]",)),
    "data that is no table": (setting("data", to=3), ("data = 3: not a table",)),
    "tune that is no table": (methods(LOGREG | {"tune": 3}), ("tune = 3: not a table",)),
    "missing file": (setting("data", "test", to="nowhere.npy"), ("test = 'nowhere.npy': no such file", "relative to")),
    "unknown key of the split": (
        setting("groups", "test", "base", to="base_3"),
        ("base = 'base_3': not in split.json. Did you mean 'base_",),
    ),
    "classes that are no numbers": (setting("groups", "test", "base", to=["cat"]), ("expected a list of class numbers",)),
    "class of both kinds": (setting("groups", "test", "novel", to="base_2"), ("is both base and novel",)),
    "class without images": (setting("groups", "test", "base", to=[7777]), ("class 7777 has 0 training images",)),
    "more seeds than images": (setting("n", to=[31]), ("has 30 training images, but needs at least 31", "smaller n")),
    "name that no artifact can have": (setting("name", to="a b"), ("name = 'a b': expected letters",)),
    "two of a name": (methods(DIFFUSION, DIFFUSION), ("[[methods]]: two methods have the name 'diffusion'",)),
    "sigma without its weights": (methods(DIFFUSION | {"sigma": 0.5}), ("sigma", "does not go with", "constant")),
    "weights without sigma": (methods(DIFFUSION | {"edge_weights": "gaussian"}), ("gaussian", "needs", "sigma")),
    "prior without its operator": (
        methods(DIFFUSION | {"prior": "seeds"}),
        ("eta = 'column' has no prior",),
    ),
    "alpha above one": (methods(DIFFUSION | {"alpha": 1.5}), ("alpha", "1.5", "from 1e-06 to 1")),
    "tuned and not": (methods(LOGREG | {"weight_decay": 1.0}), ("weight_decay is given here and in [methods.tune]",)),
    "fusion of nothing": (methods(DIFFUSION, FUSION), ("of = 'logreg': no such method",)),
    "fusion the wrong way round": (
        methods(DIFFUSION, LOGREG, FUSION | {"of": ["diffusion", "logreg"]}),
        ("of = 'diffusion': of kind diffusion, expected the name of a logreg: logreg",),
    ),
    "fusion of several": (
        methods(DIFFUSION | {"k": [5, 8]}, LOGREG, FUSION),
        ("of = 'diffusion': it has 2 variants, and a fusion needs one", "[methods.tune]"),
    ),
    "PCA of too few rows": (
        setting("dims", to=200),
        ("dims = 200: a PCA needs at least", "Use at most dims = 120"),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_refused_with_what_is_valid(quick_folder: Path, mistake: str) -> None:
    change, told = MISTAKES[mistake]
    config = small_config()
    change(config)
    path = write_config(quick_folder, config)
    outcome = CliRunner().invoke(app, ["experiment", "run", str(path), "--store", str(quick_folder / "store")])
    assert outcome.exit_code == 2, outcome.output
    assert outcome.stdout == ""
    for words in told:
        assert words in outcome.stderr
    assert outcome.stderr.count("\n") == 1
    assert not (quick_folder / "store").exists()


@pytest.mark.parametrize(
    ("content", "told"), [("n = [1", "not readable as TOML"), (b"\xff\xfe", "byte 0 is not UTF-8"), (None, "no such file")]
)
def test_unreadable_config(tmp_path: Path, content: str | bytes | None, told: str) -> None:
    path = tmp_path / "config.toml"
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError, match=told):
        read_config(path)


@pytest.mark.parametrize("content", ["[1, 2]", "{", ""])
def test_unreadable_split(tmp_path: Path, content: str) -> None:
    path = write_config(tmp_path, small_config())
    (tmp_path / "split.json").write_text(content)
    with pytest.raises(InputError, match=r"split\.json"):
        read_config(path)


def test_labels_that_do_not_match(quick_folder: Path) -> None:
    config = small_config()
    np.save(quick_folder / "short.npy", np.arange(5))
    config["data"]["test_labels"] = "short.npy"
    with pytest.raises(InputError, match=r"short\.npy: 5 labels for the 250 rows"):
        run(quick_folder, config)


def test_lists_are_variants_and_tuned_lists_are_candidates(tmp_path: Path) -> None:
    method = DIFFUSION | {"k": [5, 8], "tune": {"gamma": [0.5, 0.8, 1.5]}}
    (found,) = read_config(write_config(tmp_path, small_config(methods=[method]))).methods
    assert [setting.shown for setting in found.settings] == [{"k": 5}, {"k": 8}]
    assert [candidate["gamma"] for candidate in found.settings[1].candidates] == [0.5, 0.8, 1.5]
    assert {candidate["k"] for candidate in found.settings[1].candidates} == {8}


def test_the_config_of_the_documentation_is_right(tmp_path: Path) -> None:
    (block,) = re.findall(r"(?s)```toml\n(.*?)```", (DOCS / "experiments.md").read_text())
    for file in re.findall(r'"(\S+\.npy)"', block):
        (tmp_path / file).touch()
    (tmp_path / "split.json").write_text(json.dumps({"base_1": [0], "novel_1": [1], "background": [2]}))
    (tmp_path / "mine.toml").write_text(block)
    config = read_config(tmp_path / "mine.toml")
    assert [method.name for method in config.methods] == ["diffusion", "fewer neighbours", "logistic regression", "both"]


def test_options_of_the_documentation_are_all_that_there_are() -> None:
    page = (DOCS / "experiments.md").read_text()
    for kind, options in OPTIONS.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{kind}` |")]
        assert set(options) <= set(re.findall(r"`(\w+)`", row))


@pytest.mark.parametrize("path", READY_MADE, ids=lambda path: path.stem)
@pytest.mark.skipif(not DATA.is_dir(), reason="the Tiny ImageNet descriptors are not here")
def test_ready_made_configs_are_right(path: Path) -> None:
    config = read_config(path)
    assert config.name == path.stem
    assert config.draws == 5


def test_long_values_are_shortened_in_messages(tmp_path: Path) -> None:
    path = write_config(tmp_path, small_config(draws="many" * 10_000))
    with pytest.raises(InputError, match=r"draws = 'manymany.* \.\.\. .*expected a whole number") as refused:
        read_config(path)
    assert len(str(refused.value)) < 600
