"""The public surface: the names, what they document, and that the command line uses nothing else."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import mmdiff
from tests.support.paths import ROOT

NAMES = [
    *("DiffusionOptions", "Graph", "KNNTransformer", "LabelDiffusion", "Scores", "Store", "__commit__", "__version__"),
    *("diffuse", "errors", "evaluate", "knn_graph", "open", "sklearn", "text", "train_describer"),
]
MODULES = (
    "arrays",
    "describers",
    "diffusion.options",
    "errors",
    "results",
    "sklearn",
    "store",
    "store_describing",
    "store_labelling",
    "store_reading",
    "store_scoring",
    "text",
)


def public_callables() -> Iterator[tuple[str, Any]]:
    """Public functions, classes, and methods of public classes."""
    for name in NAMES:
        value = getattr(mmdiff, name)
        if inspect.isclass(value):
            yield name, value
            for method in dir(value):
                found = inspect.getattr_static(value, method)
                # Estimators have methods of scikit-learn too, which documents them.
                if str(getattr(found, "__module__", "")).startswith("sklearn"):
                    continue
                if not method.startswith("_") and isinstance(found, (classmethod, type(lambda: 0))):
                    yield f"{name}.{method}", getattr(value, method)
        elif callable(value):
            yield name, value
    yield from ((f"text.{name}", value) for name, value in vars(mmdiff.text).items() if inspect.isfunction(value))


CALLABLES = dict(public_callables())


def test_all_is_exactly_this() -> None:
    assert mmdiff.__all__ == NAMES
    assert dir(mmdiff) == NAMES
    assert all(getattr(mmdiff, name) is not None for name in NAMES)


def test_names_are_imported_when_they_are_used() -> None:
    script = (
        "import sys, mmdiff; assert 'numpy' not in sys.modules; print(mmdiff.Graph.__name__, mmdiff.errors.Missing.__name__)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "Graph Missing\n"
    with pytest.raises(AttributeError, match="no attribute 'Grpah'"):
        _ = mmdiff.Grpah


@pytest.mark.parametrize("name", CALLABLES)
def test_every_public_callable_documents_its_parameters_with_an_example(name: str) -> None:
    value = CALLABLES[name]
    text = inspect.getdoc(value) or ""
    assert ">>> " in text or name == "Store.names", f"{name} has no example"
    if inspect.isclass(value):
        return
    for parameter in inspect.signature(value).parameters:
        if parameter not in ("self", "cls"):
            assert re.search(rf"^ *{re.escape(parameter)}: \S", text, re.MULTILINE), f"{name} does not explain {parameter}"


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module: str) -> None:
    found = import_module(f"mmdiff.{module}")
    failed, attempted = doctest.testmod(found, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0
    assert attempted > 0


@pytest.mark.parametrize("file", sorted((ROOT / "cli").glob("*.py")), ids=lambda file: file.name)
def test_the_command_line_uses_only_the_public_api(file: Path) -> None:
    """`import mmdiff` and its public names, public submodules, and other modules of the command line."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            used = [alias.name for alias in node.names if alias.name.partition(".")[0] == "mmdiff"]
            assert set(used) <= {"mmdiff"}, file
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "mmdiff":
            module = node.module or ""
            if module == "mmdiff":
                assert {alias.name for alias in node.names} <= {*NAMES, "cli"}, (file, node.lineno)
            else:
                assert module.startswith("mmdiff.cli") or module in ("mmdiff.errors", "mmdiff.text"), (file, module)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "mmdiff":
            assert node.attr in NAMES, (file, node.attr)


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", documents(), ids=lambda page: page.name)
def test_documents_show_only_the_public_api(page: Path) -> None:
    """Code blocks of the README and of pages for users import nothing that is private by convention."""
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        for module in re.findall(r"^\s*(?:from|import) (mmdiff\S*)", block, re.MULTILINE):
            assert module in ("mmdiff", "mmdiff.errors", "mmdiff.text"), (page.name, module)
