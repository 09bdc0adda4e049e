"""Every parameter of the public Python API with values that no caller means: the twin of `nasty_options` for calls.

Parameters are read off the signatures. Whatever the value is, a call returns or raises one of our own errors; only an object
of an unrelated type in place of a path or of data may be a TypeError, and a path that is too long an OSError. Numbers and truth
values of numpy that are valid are accepted, and make what the same values of Python make.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import mmdiff
from mmdiff.runtime.threads import limit_cores
from tests.support.nasty_options import LONG, SURROGATE, World

# The tests try the first QUICK values of each table, the campaign all of them.
QUICK = 4
NUMBERS: tuple[Any, ...] = (
    float("nan"),
    -1,
    10**5000,
    1e300,
    "1",
    True,
    0,
    2.5,
    1 << 70,
    -(1 << 70),
    float("inf"),
    float("-inf"),
    1e-300,
    np.float64("nan"),
    np.int64(-1),
    np.array([1, 2]),
    "",
    b"1",
    [],
)
TEXTS: tuple[Any, ...] = ("x" * 5000, "\0", SURROGATE, "a\nb", 5, "", LONG, "..", "/", float("nan"), b"a", [], True)
FLAGS: tuple[Any, ...] = (float("nan"), "yes", 2, None, [])

# A valid value of every numeric parameter, exact in float32.
VALID: Mapping[str, int | float] = {
    "k": 3,
    "recall": 0.5,
    "sigma": 0.5,
    "lambda_": 2.0,
    "dims": 3,
    "seed": 7,
    "folds": 2,
    "memory": 1 << 31,
    "threads": 1,
    "iterations": 3,
    "cols_per_batch": 2,
    "prior_power": 0.5,
    "gamma": 1.5,
    "alpha": 0.5,
    "top": 2,
    "lr": 0.25,
    "batch_size": 7,
    "weight_decay": 0.125,
    "weight": 0.25,
    "iteration": 1,
    "min_confidence": 0.5,
    "above": 0.75,
    "share": 0.5,
    "n": 3,
    "resize": 16,
    "crop": 12,
    "mean": 0.5,
    "std": 0.5,
    "size": 24,
    "width": 8,
    "depth": 10,
    "epochs": 1,
}

# Flags that contradict the other parameters of the call, or the store.
_ONLY_FALSE = ("no_background", "append", "same_ids", "per_class", "labels_from_folders")

# Values that would connect, print, or take the place of what a test looks at.
_NOT_TRIED = ("self", "progress", "announce", "command", "dask", "create", "X", "y", "graph", "scores", "config", "options")


@dataclass(frozen=True)
class ApiCase:
    """One call that works, with the value of one parameter replaced."""

    call: str
    parameter: str
    value: Any

    def __str__(self) -> str:
        shown = "(a huge number)" if isinstance(self.value, int) and self.value > 1 << 80 else ascii(self.value)[:40]
        return f"{self.call}({self.parameter}={shown})"


def api_cases(call: str, most: int | None = None) -> Iterator[ApiCase]:
    """All cases of one call, with at most so many values for each parameter."""
    for name, parameter in inspect.signature(_signed(call)).parameters.items():
        if name in _NOT_TRIED or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        annotation = str(parameter.annotation)
        if "bool" in annotation and "str" not in annotation:
            values = FLAGS
        else:
            values = (*NUMBERS, *TEXTS) if _is_numeric(annotation) else TEXTS
        for value in values[:most]:
            yield ApiCase(call, name, value)


def numpy_cases(call: str) -> Iterator[ApiCase]:
    """A valid number or truth value of numpy for every parameter that takes one."""
    for name, parameter in inspect.signature(_signed(call)).parameters.items():
        annotation = str(parameter.annotation)
        if name in _NOT_TRIED:
            continue
        if "bool" in annotation:
            yield from (ApiCase(call, name, np.bool_(value)) for value in ((False,) if name in _ONLY_FALSE else (False, True)))
        elif _is_numeric(annotation):
            value = VALID[name]
            kinds = (np.float32, np.float64) if isinstance(value, float) else (np.int64, np.uint32)
            many = 3 if "Sequence[float]" in annotation else 1
            several = many > 1 or "Iterable" in annotation
            yield from (ApiCase(call, name, [kind(value)] * many if several else kind(value)) for kind in kinds)


def _is_numeric(annotation: str) -> bool:
    return ("int" in annotation or "float" in annotation) and "Literal['float" not in annotation


def _signed(call: str) -> Callable[..., Any]:
    owner: Any = mmdiff if call.startswith("mmdiff.") else mmdiff.Store
    found: Callable[..., Any] = getattr(owner, call.removeprefix("mmdiff."))
    return found


FUNCTIONS = ("open", "knn_graph", "diffuse", "evaluate", "train_describer")
METHODS = (
    "add",
    "describe",
    "label",
    "hold_out",
    "build_graph",
    "import_graph",
    "diffuse",
    "logreg",
    "fuse",
    "suggest",
    "predict",
    "audit",
    "evaluate",
    "explain",
    "inspect",
    "export",
)
CALLS = (*(f"mmdiff.{name}" for name in FUNCTIONS), *METHODS)


class ApiWorld:
    """Calls that work, on the tiny store of a `World`."""

    def __init__(self, world: World) -> None:
        self.world = world
        draw = np.random.default_rng(0)
        self.X = draw.normal(size=(30, 4))
        self.graph = mmdiff.knn_graph(self.X, k=4)
        self.y = np.where(np.arange(30) < 6, np.arange(30) % 2, -1)
        (world.folder / "by_id.csv").write_text("id,label\n0,1\n")

    def run(self, case: ApiCase) -> str | None:
        """Makes the call of a case; returns what is wrong with its outcome, if something is."""
        refused = True
        try:
            self._call(case.call, {case.parameter: case.value})
            refused = False
        except mmdiff.errors.MmdiffError as error:
            if len(str(error)) > 12_000:
                return f"{case}: a message of {len(str(error))} characters"
        except (TypeError, OSError) as error:
            # A path may be too long for the system, which says so.
            unusable = isinstance(error, OSError) and error.filename is not None
            if not unusable and (isinstance(case.value, str) or case.parameter in self._numeric(case.call)):
                return f"{case}: {type(error).__name__}: {str(error)[:200]}"
        except Exception as error:
            return f"{case}: {type(error).__name__}: {str(error)[:200]}"
        finally:
            limit_cores(None)
        return self.world.judge_store(case, refused=refused)

    def accepts(self, case: ApiCase) -> str | None:
        """Makes the call of a valid case, and with the same value of Python; returns the difference, if there is one."""
        plain = [value.item() for value in case.value] if isinstance(case.value, list) else case.value.item()
        found = []
        for value in (case.value, plain):
            try:
                self._call(case.call, {case.parameter: value})
            except Exception as error:
                return f"{case}: {value!r} gives {type(error).__name__}: {str(error)[:200]}"
            finally:
                limit_cores(None)
            store = mmdiff.open(self.world.store)
            found.append({name: (store[name].id, store[name].run["command"]) for name in store.names()})
            wrong = self.world.judge_store(case, refused=False)
            if wrong is not None:
                return wrong
        return None if found[0] == found[1] else f"{case}: makes {found[0]}, and {plain!r} makes {found[1]}"

    @staticmethod
    def _numeric(call: str) -> set[str]:
        parameters = inspect.signature(_signed(call)).parameters.values()
        return {parameter.name for parameter in parameters if _is_numeric(str(parameter.annotation))}

    def _call(self, call: str, given: dict[str, Any]) -> None:
        folder, parameter = self.world.folder, next(iter(given))
        # Parameters without which another one has no effect.
        weights = {"edge_weights": {"sigma": "gaussian", "lambda_": "meaningful"}.get(parameter, "constant")}
        operator = {"eta": "prior" if "prior" in parameter else "column"}
        if call == "mmdiff.knn_graph":
            mmdiff.knn_graph(self.X, **({"k": 4} | weights | given))
        elif call == "mmdiff.diffuse":
            mmdiff.diffuse(self.graph, self.y, **({"iterations": 2} | operator | given))
        elif call == "mmdiff.evaluate":
            mmdiff.evaluate(np.eye(2), [0, 1], **given)
        elif call == "mmdiff.train_describer":
            small: dict[str, Any] = {"source": folder / "images", "out": folder / "own.safetensors"}
            mmdiff.train_describer(**(small | {"size": 16, "width": 4, "epochs": 1, "threads": 1} | given))
        elif call == "mmdiff.open":
            mmdiff.open(**({"store": self.world.store} | given))
        else:
            first: dict[str, dict[str, Any]] = {
                "add": {"source": self.X, "labels": None},
                "describe": {"source": folder / "images", "model": folder / "tiny.safetensors", "crop": 16, "dims": 4},
                "label": {"source": folder / "by_id.csv"},
                "hold_out": {"share": 0.25},
                "build_graph": {"k": 4} | weights,
                "import_graph": {"file": folder / "lists.npy"} | weights,
                "diffuse": {"iterations": 2} | operator,
                "logreg": {"iterations": 20},
                "suggest": {"n": 2, "file": folder / "out.csv"},
                "audit": {"what": "duplicates"},
                "predict": {"file": folder / "out.csv", "rows": "test"},
                "explain": {"test": 0},
                "export": {"artifact": "graph/W", "file": folder / ("edges.csv" if parameter == "self_loops" else "out.npz")},
            }
            if weights["edge_weights"] != "constant":
                first["import_graph"]["distances"] = folder / "distances.npy"
            getattr(mmdiff.open(self.world.store), call)(**(first.get(call, {}) | given))
