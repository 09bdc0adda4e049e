"""Optional dependencies: one importer, whose message is the line that installs what is missing."""

from __future__ import annotations

import copy
import sys
import tomllib

import pytest

from mmdiff.formats.errors import BadOption, MissingExtra, Parameter
from mmdiff.formats.extras import EXTRAS, load
from tests.support.paths import ROOT


def test_an_installed_module_is_imported() -> None:
    assert load("pyarrow.parquet", "a test") is sys.modules["pyarrow.parquet"]


@pytest.mark.parametrize(("module", "package"), [("pyarrow.parquet", "pyarrow"), ("PIL.Image", "Pillow")])
def test_a_missing_package_is_named_with_its_extra(module: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    top_level = module.partition(".")[0]
    monkeypatch.setitem(sys.modules, top_level, None)
    expected = f"writing this needs {package}, which is not installed. Run: pip install 'mmdiff[{EXTRAS[top_level]}]'"
    with pytest.raises(MissingExtra) as caught:
        load(module, "writing this")
    assert str(caught.value) == expected


def test_a_parameter_that_needs_an_extra_is_carried_by_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtra, match=r"^dask needs distributed") as caught:
        load("distributed", Parameter("dask"))
    assert caught.value.parameter == "dask"


def test_every_extra_is_declared_by_the_package() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS.values()) <= set(declared)


def test_errors_and_their_parts_are_the_same_in_another_process() -> None:
    missing = MissingExtra("distributed", "dask", Parameter("dask"))
    named = BadOption(Parameter("k", 0), ": too small")
    for error in (missing, named):
        # A deep copy takes an error apart and makes it again, as a process pool does.
        copied = copy.deepcopy(error)
        assert type(copied) is type(error)
        assert (str(copied), copied.parts) == (str(error), error.parts)
    for parameter in (Parameter("k"), Parameter("k", None)):
        same = copy.deepcopy(parameter)
        assert same == parameter
        assert same.has_value == parameter.has_value


@pytest.mark.parametrize(
    ("error", "parameter", "value"),
    [
        (BadOption(Parameter("k", 0), ": too small"), "k", 0),
        (BadOption(Parameter("k"), ": missing"), "k", None),
        (BadOption("a file: unreadable"), None, None),
        (BadOption(), None, None),
    ],
)
def test_an_error_tells_the_parameter_that_it_begins_with(error: BadOption, parameter: str | None, value: int | None) -> None:
    assert (error.parameter, error.value) == (parameter, value)
