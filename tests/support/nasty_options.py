"""Every option of every command with values that no user means: huge, negative, not a number, not text.

The commands and their options are read off the application, so a new option is covered when it is added. A refused value is a
sentence with exit code 1 or 2 and leaves the store as it was; an accepted one leaves a store that `verify` finds sound, without
NaN in graphs and scores. Used by the tests and by the campaign `tests/long/options.py`.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import typer
from typer.testing import CliRunner

import mmdiff
from mmdiff.cli import app
from mmdiff.formats.store.store import Store
from mmdiff.runtime.threads import limit_cores
from tests.support.images import save_pictures, save_resnet
from tests.support.stores import problems

LONG = "9" * 5000
SURROGATE = "caf\udce9"

# The tests try the first QUICK values of each table, the campaign all of them.
QUICK = 5
WHOLE = ("-1", "99999999999999999999", LONG, "nan", "0", "-99999999999999999999999", "1e300", "", "-" + LONG, "2.5", SURROGATE)
REAL = ("nan", "1e300", "1e-300", "-inf", "-1", "0", "inf", "-1e300", "1e400", "1e9", "1e-9", "", LONG, "1e", SURROGATE)
TEXT = ("a\nb", "x" * 5000, SURROGATE, "", "..", "\n", "nan", "-1", "../../etc", "/dev/null", "~", "a/b", ".", "%s{0}", LONG)
CHOICE = (SURROGATE, "", "nan", LONG)

# Options whose values are amounts or addresses, which have spellings of their own.
OWN: Mapping[str, tuple[str, ...]] = {
    "memory": (LONG, "1e300", "nan", "-1", "0", "", "inf", LONG + "G", "0.000001K", "99999999999999T", SURROGATE, "8 G\n"),
    "dask": (f"local:{LONG}", "local:-1", "tcp://", "", "local:", "local:0", "local:nan", "nowhere", "tcp://:nan", SURROGATE),
    "cols_per_batch": (*WHOLE, "Auto", "auto "),
    "rows": (f"{LONG}:", "nan", "-99999999999999999999:", SURROGATE, "1:2:3", "", ":", f":{LONG}", "a:b"),
}

# Commands that do not take the store of a test.
_NO_STORE = ("doctor", "train-describer")


@dataclass(frozen=True)
class Case:
    """One command line: a command that works, with the value of one option replaced, and perhaps of others (`more`)."""

    command: str
    option: str
    value: str
    more: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return " ".join([self.command, *(f"{name} {_shown(value)}" for name, value in ((self.option, self.value), *self.more))])


def _shown(value: str) -> str:
    return ascii(value) if len(value) < 40 else f"{value[:6]}...({len(value)})"


@cache
def commands() -> tuple[tuple[str, Any], ...]:
    """All commands of the application, with the names of their groups before them."""

    def below(prefix: str, group: Any) -> Iterator[tuple[str, Any]]:
        for name, command in group.commands.items():
            full = f"{prefix} {name}".strip()
            if hasattr(command, "commands"):
                yield from below(full, command)
            else:
                yield full, command

    return tuple(below("", typer.main.get_command(app)))


def cases(command: str, most: int | None = None) -> Iterator[Case]:
    """All cases of one command: every option that takes a value, and every argument, with at most so many values each."""
    for parameter in dict(commands())[command].params:
        if getattr(parameter, "is_flag", False) or parameter.name in ("help", "install_completion", "show_completion"):
            continue
        option = max(parameter.opts, key=len) if parameter.param_type_name == "option" else parameter.name
        for value in (OWN.get(parameter.name) or _values(parameter.type_descriptor.annotation))[:most]:
            yield Case(command, option, value)


def _values(annotation: Any) -> tuple[str, ...]:
    kinds = {*get_args(annotation), annotation}
    if kinds & {int, float}:
        return WHOLE if int in kinds else REAL
    return CHOICE if any(isinstance(kind, type) and issubclass(kind, Enum) for kind in kinds) else TEXT


class World:
    """A tiny store with all artifacts, and a copy that puts it back after a command has changed it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store, self.copy = folder, folder / "store", folder / "copy"
        draw = np.random.default_rng(5)
        classes = np.arange(60) % 3
        rows = (draw.normal(size=(60, 6)) + 4 * np.eye(6)[classes]).astype(np.float32)
        np.save(folder / "rows.npy", rows)
        np.save(folder / "labels.npy", classes[:12])
        np.save(folder / "lists.npy", (np.arange(72)[:, None] + np.arange(4)) % 72)
        np.save(folder / "distances.npy", np.tile(np.array([0, 0.5, 0.6, 0.7], np.float32), (72, 1)))
        np.save(folder / "seeds.npy", rows[:12] + np.float32(0.1))
        (folder / "config.toml").write_text(CONFIG)
        save_pictures(folder / "images", each=2)
        save_resnet(folder / "tiny.safetensors")
        np.save(folder / "classes.npy", classes)
        store = mmdiff.open(self.store, create=True)
        store.add(rows)
        store.add(rows[:12] + 0.1, role="seeds", labels=classes[:12])
        store.add(rows[12:24] - 0.1, role="test", labels=classes[12:24])
        store.build_graph(k=4)
        store.diffuse(iterations=2)
        store.logreg(iterations=20)
        store.fuse()
        shutil.copytree(self.store, self.copy, symlinks=True)
        self._before = _state(self.store)

    def arguments(self, case: Case) -> list[str]:
        """The command line of a case. Arguments stand in their places, options behind them."""
        given = {name: value.format(folder=self.folder) for name, value in BASE.get(case.command, {}).items()}
        given |= {name: value.format(folder=self.folder) for name, value in WITH.get((case.command, case.option), {}).items()}
        given |= {case.option: case.value, **dict(case.more)}
        if case.command not in _NO_STORE or case.option == "--store":
            given.setdefault("--store", str(self.store))
        places = [value for name, value in given.items() if not name.startswith("-")]
        options = [f"{name}={value}" for name, value in given.items() if name.startswith("-")]
        return [*case.command.split(), *options, "--", *places]

    def run(self, case: Case) -> str | None:
        """Runs a case; returns what is wrong with its outcome, if something is."""
        words = self.arguments(case)
        before, sys.argv = sys.argv, ["mmdiff", *words]
        try:
            outcome = CliRunner().invoke(app, words)
        finally:
            sys.argv = before
            limit_cores(None)
        return self.judge(case, outcome)

    def judge(self, case: Any, outcome: Any) -> str | None:
        error = outcome.exception
        if error is not None and not isinstance(error, SystemExit):
            return f"{case}: {type(error).__name__}: {str(error)[:300]}"
        if outcome.exit_code not in (0, 1, 2):
            return f"{case}: exit code {outcome.exit_code}"
        if outcome.exit_code and (not outcome.stderr.strip() or "Traceback" in outcome.output):
            return f"{case}: no sentence, but {outcome.output[:200]!r}"
        if outcome.exit_code and len(outcome.stderr) > 2000:
            return f"{case}: a message of {len(outcome.stderr)} characters"
        return self.judge_store(case, refused=bool(outcome.exit_code))

    def judge_store(self, case: Any, *, refused: bool) -> str | None:
        """The fault of the store after a case; it is put back where the case changed it."""
        if _state(self.store) == self._before:
            return None
        found = f"{case}: refused, but the store has changed" if refused else None
        if not refused:
            store = Store.open(self.store)
            wrong = [str(problem) for problem in problems(store)]
            wrong += [f"{name}, {array}: NaN or Inf" for name, array in _not_finite(store)]
            found = f"{case}: {'; '.join(wrong)[:300]}" if wrong else None
        shutil.rmtree(self.store)
        shutil.copytree(self.copy, self.store, symlinks=True)
        self._before = _state(self.store)
        return found


def _not_finite(store: Store) -> Iterator[tuple[str, str]]:
    for name in store.names():
        artifact = store.open_artifact(name)
        for array in ("weights", "scale", "column_sums", "top_scores"):
            if array in artifact and not np.isfinite(artifact.array(array)).all():
                yield name, array
        if name.startswith("scores/") and np.isnan(artifact.array("scores")).any():
            yield name, "scores"


def _state(folder: Path) -> dict[str, Any]:
    """Names, sizes, targets and times of everything in the store, without locks."""
    found: dict[str, Any] = {}
    for entry in folder.rglob("*"):
        status = entry.lstat()
        target = str(entry.readlink()) if entry.is_symlink() else None
        found[str(entry.relative_to(folder))] = (target, status.st_size if entry.is_file() else 0, status.st_ino)
    return found


# Arguments and options with which each command works. An option with a nasty value takes the place of its entry.
BASE: Mapping[str, Mapping[str, str]] = {
    "import": {"sources": "{folder}/rows.npy", "--role": "background"},
    "describe": {"images": "{folder}/images", "--model": "{folder}/tiny.safetensors", "--crop": "16"},
    "train-describer": {"images": "{folder}/images", "--size": "16", "--width": "4", "--epochs": "1", "--threads": "1"},
    "label": {"--id": "0", "--as": "1"},
    "suggest": {"n": "3"},
    "build-graph": {"--k": "4"},
    "plan build-graph": {"--k": "4"},
    "import-graph": {"file": "{folder}/lists.npy"},
    "diffuse": {"--iterations": "2"},
    "plan diffuse": {"--iterations": "2"},
    "logreg": {"--iterations": "20"},
    "experiment run": {"config": "{folder}/config.toml"},
    "explain": {"--test": "0"},
    "report": {"file": "{folder}/report.html"},
    "export": {"artifact": "graph/W", "file": "{folder}/out.npz"},
    "fetch": {"url": "file://{folder}/copy"},
    # Served, it would never end: texts are read last, and there are none.
    "browse": {"--texts": "{folder}/no-texts.csv"},
}

# Options without which an option has no effect.
_WEIGHTED = {"--sigma": {"--edge-weights": "gaussian"}, "--lambda": {"--edge-weights": "meaningful"}}
_PRIOR = {name: {"--eta": "prior"} for name in ("--prior", "--prior-power")}
_DISTANCES = {"--distances": "{folder}/distances.npy"}
WITH: Mapping[tuple[str, str], Mapping[str, str]] = {
    **{("build-graph", name): options for name, options in _WEIGHTED.items()},
    **{("import-graph", name): {**options, **_DISTANCES} for name, options in _WEIGHTED.items()},
    **{(command, name): options for command in ("diffuse", "plan diffuse") for name, options in _PRIOR.items()},
}

CONFIG = """
name = "tiny"
n = 1
draws = 1
[data]
train = "rows.npy"
train_labels = "classes.npy"
test = "rows.npy"
test_labels = "classes.npy"
[groups.validation]
base = [0, 1]
novel = [2]
[[methods]]
name = "diffusion"
kind = "diffusion"
k = 4
iterations = 2
"""
