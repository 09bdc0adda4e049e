"""Methods of an experiment, read from the tables of a config with every key and value checked.

A list among the options of a method gives several variants, each with its own results. A list in its table `tune` gives
candidates, of which the validation group chooses one for each background and n (paper, sections 4.1 and 4.2). Error messages
name the file, the table and the key, what was found, what is valid, and the nearest valid word.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

import numpy as np

from mmdiff.diffusion.options import declared_options
from mmdiff.diffusion.variant import Variant, class_prior
from mmdiff.formats.errors import BadOption, Call, Parameter
from mmdiff.formats.store.manifest import Json
from mmdiff.graph.lists import MOST_NODES
from mmdiff.graph.weights import Weighting, choose
from mmdiff.logreg.training import MOST_BATCH, MOST_BATCHES, Options
from mmdiff.runtime.parameters import as_number, as_whole

Value = TypeVar("Value")
Check = Callable[[Any], Value | None]
"""Converts a raw value; returns None if it is not valid."""


# Characters at the beginning and at the end of a long message.
_SHOWN = 250


class Table:
    """One table of a config. `where` names it in messages: `table1.toml, [data]`."""

    def __init__(self, where: str, values: Json) -> None:
        self.where, self._values = where, values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Refuses the first key that is not known, with the nearest one that is."""
        valid = list(known)
        for key in self._values:
            if key not in valid:
                self.refuse(f"unknown key {key!r}.{did_you_mean(key, valid)} Valid here: {', '.join(valid)}.")

    def refuse(self, problem: str) -> NoReturn:
        if len(problem) > 2 * _SHOWN:
            problem = f"{problem[:_SHOWN]} ... {problem[-_SHOWN:]}"
        raise BadOption(f"{self.where}: {problem}")

    def get(self, key: str, check: Check[Value], expected: str, default: Value | None = None) -> Value:
        """The value of a key, which is required if there is no default."""
        if key not in self._values:
            if default is None:
                self.refuse(f"the key {key!r} is missing. Give it {expected}.")
            return default
        return self._checked(key, self._values[key], check, expected)

    def each(self, key: str, check: Check[Value], expected: str) -> list[Value]:
        """One value, or a list of different ones; the key is required."""
        found = self.get(key, lambda raw: raw, f"{expected}, or a list of them")
        values = [self._checked(key, value, check, expected) for value in (found if isinstance(found, list) else [found])]
        if not values:
            self.refuse(f"{key} = []: the list is empty. Give it {expected}, or a list of them.")
        repeated = [value for place, value in enumerate(values) if value in values[:place]]
        if repeated:
            self.refuse(f"{key}: {repeated[0]!r} is listed twice. Leave one of them out.")
        return values

    def choice(self, key: str, valid: Sequence[str], default: str | None = None) -> str:
        return self.get(key, one_of(valid), f"one of {', '.join(valid)}", default)

    def table(self, key: str) -> Table:
        """A table within this one; empty if it is missing."""
        found = self._values.get(key, {})
        if not isinstance(found, dict):
            self.refuse(f"{key} = {found!r}: not a table. Write [{key}] and its keys below it.")
        return Table(f"{self.where.split(', ')[0]}, [{key}]", found)

    def tables(self, key: str) -> list[Json]:
        """The tables of a list, unchecked."""
        found = self._values.get(key, [])
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found) or not found:
            self.refuse(f"at least one table [[{key}]] is needed. Write [[{key}]] and its keys below it.")
        return found

    def _checked(self, key: str, raw: Any, check: Check[Value], expected: str) -> Value:
        value = check(raw)
        if value is None:
            near = did_you_mean(raw, expected.removeprefix("one of ").split(", ")) if isinstance(raw, str) else ""
            self.refuse(f"{key} = {raw!r}: expected {expected}.{near}")
        return value


def did_you_mean(word: str, valid: Sequence[str]) -> str:
    """The question " Did you mean ...?" if one of the valid words is similar, else nothing."""
    found = difflib.get_close_matches(word.lower(), valid, n=1, cutoff=0.5)
    return f" Did you mean {found[0]!r}?" if found else ""


def text(raw: Any) -> str | None:
    return raw if isinstance(raw, str) and raw else None


def whole(least: int, most: int = MOST_NODES) -> Check[int]:
    """A whole number within bounds."""
    return lambda raw: as_whole(raw, least, most)


# Larger numbers overflow in float32.
_MOST_NUMBER = 1e9


def number(raw: Any) -> float | None:
    """A finite number."""
    return as_number(raw, -_MOST_NUMBER, _MOST_NUMBER)


def positive(raw: Any) -> float | None:
    value = number(raw)
    return value if value is not None and value > 0 else None


def not_negative(raw: Any) -> float | None:
    value = number(raw)
    return value if value is not None and value >= 0 else None


def one_of(valid: Sequence[str]) -> Check[str]:
    return lambda raw: raw if isinstance(raw, str) and raw in valid else None


Kind = Literal["diffusion", "logreg", "fusion"]
KINDS: tuple[Kind, ...] = ("diffusion", "logreg", "fusion")

DEFAULT_K, DEFAULT_ITERATIONS = 30, 10
_EDGE_WEIGHTS = ("constant", "gaussian", "meaningful")
_PRIORS = ("uniform", "seeds", "logreg")


class Option(NamedTuple):
    """A key of a method: its check, what is expected in words, and its default (None: no value)."""

    check: Check[Any]
    expected: str
    default: Any = None


def _diffusion_option(name: str) -> Option:
    """An option of `mmdiff.diffuse`, as it is declared there; experiments run for more iterations and choose among them."""
    declared = declared_options()[name]
    check = one_of(declared.choices) if declared.domain is None else declared.domain.read
    return Option(check, declared.expected, DEFAULT_ITERATIONS if name == "iterations" else declared.default)


OPTIONS: Mapping[str, Mapping[str, Option]] = {
    "diffusion": {
        "k": Option(whole(1), "a whole number of at least 1", DEFAULT_K),
        "edge_weights": Option(one_of(_EDGE_WEIGHTS), f"one of {', '.join(_EDGE_WEIGHTS)}", "constant"),
        "sigma": Option(positive, "a number above 0"),
        "lambda": Option(positive, "a number above 0"),
        **{name: _diffusion_option(name) for name, declared in declared_options().items() if declared.in_experiments},
        "prior": Option(one_of(_PRIORS), f"one of {', '.join(_PRIORS)}"),
    },
    "logreg": {
        "lr": Option(positive, "a number above 0", Options.lr),
        "batch_size": Option(whole(1, MOST_BATCH), f"a whole number from 1 to {MOST_BATCH:,}", Options.batch_size),
        "weight_decay": Option(not_negative, "a number of at least 0", Options.weight_decay),
        "iterations": Option(whole(1, MOST_BATCHES), f"a whole number from 1 to {MOST_BATCHES:,}", Options.iterations),
        "momentum": Option(not_negative, "a number from 0 to below 1", Options.momentum),
    },
    "fusion": {},
}


@dataclass(frozen=True)
class Setting:
    """One variant of a method: `shown` are the options that set it apart, `candidates` its complete options."""

    method: str
    kind: Kind
    shown: Json
    candidates: tuple[Json, ...]

    @property
    def has_background(self) -> bool:
        """Whether the method uses a background."""
        return self.kind != "logreg"


@dataclass(frozen=True)
class Method:
    """A method of a config; `of` names the logistic regression and the diffusion that a fusion combines."""

    name: str
    kind: Kind
    settings: tuple[Setting, ...]
    of: tuple[str, str] | None = None
    given: Json = field(default_factory=dict)


def read_methods(config: Table) -> tuple[Method, ...]:
    """All methods of a config. Fusions are checked against the methods that they combine."""
    file = config.where
    methods = [_read_method(file, number, values) for number, values in enumerate(config.tables("methods"), 1)]
    named: dict[str, Method] = {}
    for method in methods:
        if method.name in named:
            raise BadOption(f"{file}, [[methods]]: two methods have the name {method.name!r}. Rename one of them.")
        named[method.name] = method
    for method in methods:
        for name, kind in zip(method.of or (), ("logreg", "diffusion"), strict=False):
            _check_part(f'{file}, [[methods]] "{method.name}"', named, name, kind)
    return tuple(methods)


def weighting_of(options: Json) -> Weighting | None:
    return choose(options["edge_weights"], options.get("sigma"), options.get("lambda"))


def variant_of(options: Json) -> Variant:
    return Variant(**{each.name: options[each.name] for each in fields(Variant) if each.name in options})


def _read_method(file: str, number: int, values: Json) -> Method:
    table = Table(f"{file}, [[methods]] number {number}", values)
    name = table.get("name", text, "a name for the results")
    table = Table(f'{file}, [[methods]] "{name}"', values)
    kind: Any = table.choice("kind", KINDS)
    if kind == "fusion":
        table.refuse_unknown(("name", "kind", "of"))
        of = table.get("of", _two_names, "the names of two methods: a logreg, then a diffusion")
        return Method(name, kind, (Setting(name, kind, {}, ({},)),), of, {"name": name, "kind": kind, "of": list(of)})
    options = OPTIONS[kind]
    table.refuse_unknown(("name", "kind", *options, "tune"))
    given = values.get("tune", {})
    if not isinstance(given, dict):
        table.refuse(f"tune = {given!r}: not a table. Write [methods.tune] and lists of options below it.")
    tune = Table(f'{file}, [methods.tune] of "{name}"', given)
    tune.refuse_unknown(options)
    fixed = {key: table.each(key, *options[key][:2]) for key in options if key in table}
    tuned = {key: tune.each(key, *options[key][:2]) for key in options if key in tune}
    both = [key for key in fixed if key in tuned]
    if both:
        table.refuse(f"{both[0]} is given here and in [methods.tune]. Leave one of them out.")
    defaults = {key: option.default for key, option in options.items() if option.default is not None}
    settings = []
    for chosen in _products(fixed):
        candidates = tuple(defaults | chosen | candidate for candidate in _products(tuned))
        for candidate in candidates:
            _check_candidate(table, kind, candidate)
        shown = {key: value for key, value in chosen.items() if len(fixed[key]) > 1}
        settings.append(Setting(name, kind, shown, candidates))
    return Method(name, kind, tuple(settings), given={"name": name, "kind": kind, "options": fixed, "tune": tuned})


def _products(lists: Mapping[str, list[Any]]) -> list[Json]:
    return [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]


def _check_candidate(table: Table, kind: Kind, options: Json) -> None:
    """Refuses options that are valid by themselves but not together."""
    if kind == "logreg":
        if options["momentum"] >= 1:
            table.refuse(f"momentum = {options['momentum']:g}: expected a number from 0 to below 1.")
        return
    try:
        weighting = weighting_of(options)
        if weighting is not None:
            weighting.check(options["k"])
        variant = variant_of(options)
        if not variant.takes_prior:
            given = np.ones(1) if "prior" in options else None
            class_prior(variant, given, None, options.get("prior_power"), 1)
    except BadOption as error:
        table.refuse(error.spelled(as_key))


def as_key(part: Parameter | Call) -> str:
    """A parameter of the engine as a key of the config."""
    if isinstance(part, Parameter) and part.has_value:
        return f"{part.name.strip('_')} = {part.value!r}"
    return part.name.strip("_") if isinstance(part, Parameter) else str(part)


def _two_names(raw: Any) -> tuple[str, str] | None:
    two = isinstance(raw, list) and len(raw) == 2 and all(isinstance(name, str) for name in raw)
    return (raw[0], raw[1]) if two else None


def _check_part(where: str, named: Mapping[str, Method], name: str, kind: str) -> None:
    part = named.get(name)
    if part is None or part.kind != kind:
        found = "no such method" if part is None else f"of kind {part.kind}"
        valid = ", ".join(other.name for other in named.values() if other.kind == kind) or "none here"
        raise BadOption(f"{where}: of = {name!r}: {found}, expected the name of a {kind}: {valid}.")
    if len(part.settings) > 1:
        raise BadOption(
            f"{where}: of = {name!r}: it has {len(part.settings)} variants, and a fusion needs one. "
            "Move the lists of its options to [methods.tune]."
        )
