"""The methods of an experiment: which options each has, and how lists of them become variants and candidates.

A list among the options of a method stands for several variants, each of which is reported. A list in its table `tune` stands
for candidates, of which the validation group chooses one for each background and n (paper, sections 4.1 and 4.2).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal, NamedTuple

from mmdiff.classify.logreg import Options
from mmdiff.diffusion.variant import ETAS, Variant, class_prior
from mmdiff.experiment.checking import Check, Table, flag, not_negative, number, one_of, positive, text, whole
from mmdiff.formats.errors import BadOption
from mmdiff.formats.manifest import Json
from mmdiff.graph.weights import Weighting, choose

Kind = Literal["diffusion", "logreg", "fusion"]
KINDS: tuple[Kind, ...] = ("diffusion", "logreg", "fusion")

DEFAULT_K, DEFAULT_ITERATIONS = 30, 10
_EDGE_WEIGHTS = ("constant", "gaussian", "meaningful")
_PRIORS = ("uniform", "seeds", "logreg")


class Option(NamedTuple):
    """A key of a method: what it may be, and what it is where it is not given; None is not there."""

    check: Check[Any]
    expected: str
    default: Any = None


OPTIONS: Mapping[str, Mapping[str, Option]] = {
    "diffusion": {
        "k": Option(whole(1), "a whole number of at least 1", DEFAULT_K),
        "edge_weights": Option(one_of(_EDGE_WEIGHTS), f"one of {', '.join(_EDGE_WEIGHTS)}", "constant"),
        "sigma": Option(positive, "a number above 0"),
        "lambda": Option(positive, "a number above 0"),
        "iterations": Option(whole(0), "a whole number of at least 0", DEFAULT_ITERATIONS),
        "eta": Option(one_of(ETAS), f"one of {', '.join(ETAS)}", "column"),
        "prior": Option(one_of(_PRIORS), f"one of {', '.join(_PRIORS)}"),
        "prior_power": Option(number, "a number"),
        "gamma": Option(positive, "a number above 0"),
        "alpha": Option(positive, "a number above 0 and up to 1"),
        "reset_seeds": Option(flag, "true or false", False),
        "normalize_graph": Option(one_of(("row", "symmetric")), "one of row, symmetric", "row"),
    },
    "logreg": {
        "lr": Option(positive, "a number above 0", Options.lr),
        "batch_size": Option(whole(1), "a whole number of at least 1", Options.batch_size),
        "weight_decay": Option(not_negative, "a number of at least 0", Options.weight_decay),
        "iterations": Option(whole(1), "a whole number of at least 1", Options.iterations),
        "momentum": Option(not_negative, "a number from 0 to below 1", Options.momentum),
    },
    "fusion": {},
}


@dataclass(frozen=True)
class Setting:
    """One variant of a method: `shown` are the options that tell it from the others, `candidates` its complete options."""

    method: str
    kind: Kind
    shown: Json
    candidates: tuple[Json, ...]

    @property
    def has_background(self) -> bool:
        """Whether it matters to the method what labels spread over."""
        return self.kind != "logreg"


@dataclass(frozen=True)
class Method:
    """A method of a config; `of` are the logistic regression and the diffusion that a fusion is made of."""

    name: str
    kind: Kind
    settings: tuple[Setting, ...]
    of: tuple[str, str] | None = None
    given: Json = field(default_factory=dict)


def read_methods(config: Table) -> tuple[Method, ...]:
    """All methods of a config, each checked by itself, fusions against those that they are made of."""
    file = config.where
    methods = [_read_method(file, number, values) for number, values in enumerate(config.tables("methods"), 1)]
    named: dict[str, Method] = {}
    for method in methods:
        if method.name in named:
            raise BadOption(f"{file}: two methods are called {method.name!r}. Give each a name of its own.")
        named[method.name] = method
    for method in methods:
        for name, kind in zip(method.of or (), ("logreg", "diffusion"), strict=False):
            _check_part(f'{file}, [[methods]] "{method.name}"', named, name, kind)
    return tuple(methods)


def weighting_of(options: Json) -> Weighting | None:
    return choose(options["edge_weights"], options.get("sigma"), options.get("lambda"))


def variant_of(options: Json) -> Variant:
    return Variant(
        options["eta"], options.get("gamma"), options.get("alpha"), options["reset_seeds"], options["normalize_graph"]
    )


def _read_method(file: str, number: int, values: Json) -> Method:
    table = Table(f"{file}, [[methods]] number {number}", values)
    name = table.get("name", text, "what it is called in the results")
    table = Table(f'{file}, [[methods]] "{name}"', values)
    kind: Any = table.choice("kind", KINDS)
    if kind == "fusion":
        table.refuse_unknown(("name", "kind", "of"))
        of = table.get("of", _two_names, "two names of methods: that of a logreg, then that of a diffusion")
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
    """Options that are each right must also go together."""
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
            class_prior(variant, None, "", options.get("prior_power"), 1)
            if "prior" in options:
                raise BadOption(f"--prior: --eta {variant.eta} has no prior. Use it with --eta prior or --eta sinkhorn.")
    except BadOption as error:
        # The engine speaks of options of the command line; here they are keys.
        table.refuse(re.sub(r"--([a-z-]+)", lambda found: found[1].replace("-", "_"), str(error)))


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
