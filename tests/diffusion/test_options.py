"""The diffusion options are declared once: the command line, Python and experiments have the same names and defaults."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

import mmdiff
from mmdiff.cli import app
from mmdiff.diffusion.options import DiffusionOptions, checked, declared_options
from mmdiff.diffusion.stage import Request
from mmdiff.diffusion.variant import Variant
from mmdiff.experiment.methods import OPTIONS
from mmdiff.formats.errors import BadOption


def parameters_of(*command: str) -> dict[str, Any]:
    found: Any = get_command(app)
    for name in command:
        found = found.commands[name]
    return {parameter.name: parameter for parameter in found.params}


@pytest.mark.parametrize("command", [("diffuse",), ("plan", "diffuse")], ids=" ".join)
def test_command_has_every_declared_option_with_its_default_and_help(command: tuple[str, ...]) -> None:
    parameters = parameters_of(*command)
    for name, declared in declared_options().items():
        parameter = parameters[name]
        assert parameter.opts == [f"--{name.replace('_', '-')}"]
        assert parameter.help == " ".join(filter(None, (declared.doc, declared.auto)))
        default = parameter.default
        assert (default.value if declared.choices else default) == (
            declared.default if declared.auto is None else str(declared.default)
        )
        assert not declared.choices or tuple(each.value for each in type(default)) == declared.choices


def test_python_documents_every_declared_option() -> None:
    for name, declared in declared_options().items():
        for function in (mmdiff.diffuse, mmdiff.Store.diffuse):
            assert f"{name}: {declared.doc}" in " ".join((function.__doc__ or "").split())
        if declared.auto is not None:
            assert declared.auto in " ".join((mmdiff.Store.diffuse.__doc__ or "").split())
            assert declared.auto not in " ".join((mmdiff.diffuse.__doc__ or "").split())


def test_every_option_is_documented_in_a_sentence() -> None:
    for declared in declared_options().values():
        assert declared.doc[0].isupper()
        assert declared.doc.endswith(".")


def test_options_of_experiments_are_declared_ones() -> None:
    own = {"k", "edge_weights", "sigma", "lambda"}
    shared = OPTIONS["diffusion"].keys() - own
    assert shared == {name for name, declared in declared_options().items() if declared.in_experiments}
    assert all(OPTIONS["diffusion"][name].default == declared_options()[name].default for name in shared - {"iterations"})


def test_variant_and_request_take_over_the_declaration() -> None:
    assert {each.name for each in fields(Variant)} <= declared_options().keys() <= {each.name for each in fields(Request)}
    assert Variant() == Variant.of(DiffusionOptions())


def test_numbers_take_the_type_of_their_option() -> None:
    given: dict[str, Any] = {"iterations": np.int64(3), "gamma": 2, "alpha": np.float32(0.5), "cols_per_batch": np.uint8(7)}
    options = DiffusionOptions(**given)
    assert [type(value) for value in (options.iterations, options.gamma, options.alpha)] == [int, float, float]
    assert options.cols_per_batch == 7
    assert DiffusionOptions(cols_per_batch="auto").cols_per_batch == "auto"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("iterations", -1),
        ("iterations", 2.0),
        ("iterations", False),
        ("iterations", None),
        ("cols_per_batch", 0),
        ("cols_per_batch", "all"),
        ("eta", "Column"),
        ("eta", None),
        ("prior", ""),
        ("prior_power", float("inf")),
        ("gamma", float("nan")),
        ("gamma", "2"),
        ("alpha", 0),
        ("alpha", float("nan")),
        ("reset_seeds", "yes"),
        ("dtype", "float16"),
        ("keep_scores", "first"),
    ],
)
def test_values_of_other_types_and_ranges_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(BadOption) as refused:
        checked(name, value)
    assert refused.value.parameter == name
    with pytest.raises(BadOption, match=name):
        Request(**{name: value})
